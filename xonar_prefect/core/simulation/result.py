"""What became of a simulated queue."""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import Refuse
from xonar_prefect.core.metrics import Served, Service, service
from xonar_prefect.core.simulation.world import Learnt, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training that has completed.

    Attributes:
        submission: What was submitted.
        devices: Ids of its devices.
        started_at_s: When it was released (for the last time, if it ran out of memory).
        finished_at_s: When it was done.
        partners: Names of all trainings it ran beside, sorted.
    """

    submission: Submission
    devices: tuple[str, ...]
    started_at_s: float
    finished_at_s: float
    partners: tuple[str, ...] = ()

    @property
    def served(self) -> Served:
        """Its times."""
        return Served(
            submitted_at_s=self.submission.submitted_at_s,
            started_at_s=self.started_at_s,
            finished_at_s=self.finished_at_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A release that ended in running out of memory."""

    submission: Submission
    devices: tuple[str, ...]
    started_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of a queue under one policy.

    Attributes:
        outcomes: Completed trainings, in the order of their submission.
        refused: Trainings that no device can take.
        failed: Trainings that ran out of memory as often as they may.
        losses: Every time that one ran out of memory.
        decisions: How often the policy was asked.
        decision_seconds: What that took by the caller's clock; None without one.
        pairs: Kinds that shared a device: device model and the two, sorted.
        learnt: What is known now, for the next queue.
    """

    outcomes: tuple[Outcome, ...]
    refused: tuple[Refuse, ...]
    failed: tuple[Submission, ...]
    losses: tuple[Loss, ...]
    decisions: int
    decision_seconds: float | None
    pairs: frozenset[tuple[str, str, str]]
    learnt: Learnt

    @property
    def service(self) -> Service:
        """How well the completed trainings were served."""
        return service(outcome.served for outcome in self.outcomes)
