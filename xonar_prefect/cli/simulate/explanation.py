"""Why every training of one queue was released when it was: the decisions' own sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xonar_prefect.core.decisions import (
    Alternative,
    Decision,
    Hold,
    Refuse,
    Release,
)
from xonar_prefect.core.models import Snapshot

HOLDS_SHOWN = (
    "A hold is shown when its kind of reason is new for the training; --json has every new "
    "sentence."
)


class Explanation:
    """Takes down the decisions about one queue; a hold only when its reason is a new one.

    Attributes:
        queue: Name of the queue.
        decisions: What was decided, by policy, in order.
    """

    def __init__(self, queue: str, *, every_hold: bool = True) -> None:
        """Begin with nothing.

        Args:
            queue: Name of the queue.
            every_hold: Whether another sentence makes a reason a new one. Otherwise only a code
                does that the training had not since its last release: of a long queue sentences
                change at nearly every decision and codes take turns, and nobody reads that.
        """
        self.queue = queue
        self._every_hold = every_hold
        self.decisions: dict[str, list[dict[str, Any]]] = {}

    def watch(
        self, queue: str, policy: str
    ) -> Callable[[Snapshot, tuple[Decision, ...]], None] | None:
        """Return what to tell the decisions of a simulation; None for another queue."""
        if queue != self.queue:
            return None
        told: dict[str, set[str]] = {}
        taken = self.decisions.setdefault(policy, [])

        def take(snapshot: Snapshot, decisions: tuple[Decision, ...]) -> None:
            for decision in decisions:
                run_id = decision.training.run_id
                reason = decision.reason if self._every_hold else decision.code.value
                of_run = told.setdefault(run_id, set())
                if isinstance(decision, Hold) and reason in of_run:
                    continue
                if self._every_hold or not isinstance(decision, Hold):
                    of_run.clear()
                of_run.add(reason)
                taken.append(_as_json(snapshot.now_s, decision))

        return take

    def lines(self, policy: str) -> list[str]:
        """Return the decisions of a policy for people, with the alternatives of releases."""
        lines = []
        for each in self.decisions.get(policy, []):
            lines.append(
                f"{each['at_s']:10.1f} s  {each['decision']:8} {each['training']}: "
                f"{each['reason']} [{each['code']}]"
            )
            if each["decision"] == "released":
                lines += [
                    f"{'':14}rather than {other['candidate']}: {other['reason']}"
                    for other in each["alternatives"]
                ]
        return lines


def _as_json(now_s: float, decision: Decision) -> dict[str, Any]:
    words = {Release: "released", Hold: "held", Refuse: "refused"}
    release = decision if isinstance(decision, Release) else None
    return {
        "at_s": now_s,
        "training": decision.training.name,
        "decision": words[type(decision)],
        "code": decision.code.value,
        "reason": decision.reason,
        "devices": list(release.devices) if release else [],
        "predicted_slowdown": release.predicted_slowdown if release else None,
        "alternatives": [_alternative(each) for each in decision.alternatives],
    }


def _alternative(each: Alternative) -> dict[str, Any]:
    return {
        "candidate": each.candidate,
        "device": each.device,
        "code": each.code.value,
        "reason": each.reason,
        "predicted_slowdown": each.predicted_slowdown,
    }
