"""Shows decisions where Prefect users look: state name, labels, artifact, log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from xonar_prefect.artifacts import decision_markdown
from xonar_prefect.core.decisions import (
    Hold,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import AWAITING_GPU, Claims

DECISION_ARTIFACT = "xonar-decision"

# Codes that take turns while others come and go on the devices: to a person they say one thing.
_OTHERS_ARE_THERE = frozenset(
    {
        ReasonCode.NO_FREE_SLOT,
        ReasonCode.INSUFFICIENT_MEMORY,
        ReasonCode.PARTNER_UNPROFILED,
        ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE,
        ReasonCode.KNOWN_TO_CLASH,
        ReasonCode.EXCLUSIVE,
        ReasonCode.GANG_INCOMPLETE,
        ReasonCode.BETTER_PARTNER_CHOSEN,
        ReasonCode.BETTER_ALONE,
        ReasonCode.DEVICE_KEPT_FREE,
    }
)
# A sentence that grows old under the same code is written again, but not more often than this.
_SENTENCE_SECONDS = 60.0

_Label: TypeAlias = bool | int | float | str

_logger = logging.getLogger(__name__)


def held_because(flow_run: FlowRun) -> tuple[str | None, str | None]:
    """Return code and sentence of why a scheduled run is held; None for what nobody has said.

    Labels of a release or a refusal are from before the run came back into the queue, by us or by
    a person who had it tried again, and are no reason to be held.
    """
    if labels.tell_of_hold(flow_run.labels):
        return str(flow_run.labels[labels.REASON_CODE]), str(flow_run.labels.get(labels.REASON, ""))
    state = flow_run.state
    return None, state.message if state is not None and state.name == AWAITING_GPU else None


@dataclass(slots=True)
class _Told:
    """What a held run was told, and what there would be to tell."""

    held_since_s: float
    code: ReasonCode
    code_since_s: float
    kind_since_s: float
    label: tuple[ReasonCode, str] | None = None
    labelled_at_s: float = 0.0
    marked: ReasonCode | None = None
    artifact: ReasonCode | None = None


class Explanations:
    """Tells each run what was decided, and again when the kind of reason has changed for good.

    To mark a run costs four calls and two of its states, so a reason that comes and goes is not
    followed: the label is, once the reason has stood for `mark_after_seconds`.

    Args:
        client: Of the Prefect server.
        claims: Changes states.
        mark_after_seconds: How long a run is held before its state is changed.
        mark_again_seconds: How long another kind of reason must stand before that is done again.
        clock: The time in seconds.
    """

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        *,
        mark_after_seconds: float,
        mark_again_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._claims = claims
        self._mark_after_seconds = mark_after_seconds
        self._mark_again_seconds = mark_again_seconds
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def forget(self, run_id: str) -> None:
        """Drop what is remembered of a run that is no longer held."""
        self._told.pop(run_id, None)

    def keep_only(self, run_ids: frozenset[str]) -> None:
        """Forget every run that is not held any more."""
        for run_id in self._told.keys() - run_ids:
            self.forget(run_id)

    def has_news(self, hold: Hold, *, markable: bool = True) -> bool:
        """Take note of a hold, and tell whether there is something to show of it now."""
        told = self._note(hold)
        return (
            self._is_label_due(told, hold)
            or (markable and self._is_mark_due(told, hold))
            or self._is_artifact_due(told, hold)
        )

    async def hold(self, hold: Hold, flow_run: FlowRun, *, markable: bool) -> bool:
        """Show why a run is held, as far as that is news.

        Args:
            hold: The decision.
            flow_run: The run, as the queue showed it.
            markable: Whether claiming it to mark it does no harm.

        Returns:
            Whether its state was written.
        """
        told = self._note(hold)
        mark = markable and self._is_mark_due(told, hold)
        label = (hold.code, hold.reason)
        if self._is_label_due(told, hold) or (mark and told.label != label):
            if told.label is None or told.label[0] is not hold.code:
                _logger.info("Holding %r: %s", hold.training.name, hold.reason)
            values: dict[str, _Label] = {
                labels.REASON_CODE: hold.code.value,
                labels.REASON: hold.reason,
            }
            await self._label(flow_run.id, values)
            told.label, told.labelled_at_s = label, self._clock()
        marked = False
        if mark:
            is_marked_already = told.marked is None and flow_run.state_name == AWAITING_GPU
            # By another worker or in an earlier life: do not take turns in rewriting it.
            marked = not is_marked_already and await self._claims.mark_held(flow_run, hold.reason)
            told.marked = hold.code
            if not marked:
                told.artifact = hold.code
        if self._is_artifact_due(told, hold):
            await self._artifact(flow_run, hold)
            told.artifact = hold.code
        return marked

    def _note(self, hold: Hold) -> _Told:
        now = self._clock()
        told = self._told.get(hold.training.run_id)
        if told is None:
            told = _Told(now, hold.code, now, now)
            self._told[hold.training.run_id] = told
        if _kind(told.code) != _kind(hold.code):
            told.kind_since_s = now
        if told.code is not hold.code:
            told.code, told.code_since_s = hold.code, now
        return told

    def _is_label_due(self, told: _Told, hold: Hold) -> bool:
        now = self._clock()
        if told.label is None:
            return True
        if told.label[0] is not hold.code:
            return now - told.code_since_s >= self._mark_after_seconds
        is_old = now - told.labelled_at_s >= _SENTENCE_SECONDS
        return is_old and told.label[1] != hold.reason

    def _is_mark_due(self, told: _Told, hold: Hold) -> bool:
        now = self._clock()
        if told.marked is None:
            return now - told.held_since_s >= self._mark_after_seconds
        is_another = _kind(told.marked) != _kind(hold.code)
        return is_another and now - told.kind_since_s >= self._mark_again_seconds

    def _is_artifact_due(self, told: _Told, hold: Hold) -> bool:
        """Tell whether the reason that stands, device by device, is not on the run's page yet."""
        if self._clock() - told.held_since_s < self._mark_after_seconds:
            return False
        is_labelled = told.label is not None and told.label[0] is hold.code
        return is_labelled and told.artifact is not hold.code

    async def release(self, release: Release, flow_run: FlowRun, partners: tuple[str, ...]) -> None:
        """Show where a run goes and beside whom."""
        self.forget(release.training.run_id)
        _logger.info("Releasing %r: %s", release.training.name, release.reason)
        values: dict[str, _Label] = {
            labels.REASON_CODE: release.code.value,
            labels.REASON: release.reason,
            labels.DEVICES: ", ".join(release.devices),
            **_beside(partners, release.predicted_slowdown),
        }
        await self._label(flow_run.id, values)
        await self._artifact(flow_run, release)

    async def joined(
        self, run_id: str, partners: Sequence[str], predicted_slowdown: float | None
    ) -> None:
        """Show a training that runs whom it has beside it now.

        Args:
            run_id: The training.
            partners: Names of all its partners.
            predicted_slowdown: What is predicted for it beside them.
        """
        await self._label(UUID(run_id), _beside(partners, predicted_slowdown))

    async def refuse(self, refuse: Refuse, flow_run: FlowRun) -> bool:
        """End a run that can never start here, and say why."""
        self.forget(refuse.training.run_id)
        refused = await self._claims.refuse(flow_run, refuse.reason)
        if refused:
            _logger.warning("Refusing %r: %s", refuse.training.name, refuse.reason)
            values: dict[str, _Label] = {
                labels.REASON_CODE: refuse.code.value,
                labels.REASON: refuse.reason,
            }
            await self._label(flow_run.id, values)
            await self._artifact(flow_run, refuse)
        return refused

    async def _label(self, run_id: UUID, values: dict[str, _Label]) -> None:
        try:
            await self._client.update_flow_run_labels(run_id, values)
        except ObjectNotFound:
            self.forget(str(run_id))

    async def _artifact(self, flow_run: FlowRun, decision: Release | Hold | Refuse) -> None:
        await self._client.create_artifact(
            ArtifactCreate(
                key=DECISION_ARTIFACT,
                type="markdown",
                description=decision.reason,
                data=decision_markdown(decision),
                flow_run_id=flow_run.id,
            )
        )


def _kind(code: ReasonCode) -> object:
    return _OTHERS_ARE_THERE if code in _OTHERS_ARE_THERE else code


def _beside(partners: Sequence[str], predicted_slowdown: float | None) -> dict[str, _Label]:
    return {
        labels.PARTNER: ", ".join(partners),
        labels.PREDICTED_SLOWDOWN: (
            "" if predicted_slowdown is None else f"{predicted_slowdown:.3f}"
        ),
    }
