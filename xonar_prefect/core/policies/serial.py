"""One training per device, first come, first served."""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import Decision
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.planning import each_place, first_in_queue, plan


@dataclass(frozen=True, slots=True)
class Serial:
    """Never shares a device: what the gains of sharing are measured against."""

    name: str = "serial"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, each_place(first_in_queue), share=False)
