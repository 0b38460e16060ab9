"""First-come-first-served pairs that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import Decision
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.planning import each_place, first_in_queue, plan


@dataclass(frozen=True, slots=True)
class Parallel:
    """For every free slot the first training in the queue that fits, whoever is there."""

    name: str = "parallel"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, each_place(first_in_queue))
