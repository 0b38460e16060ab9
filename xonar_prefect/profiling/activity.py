"""What a device did during the steps of a trace, whatever framework wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xonar_prefect.profiling.intervals import Coverage, Span, subtract, union

COMMUNICATION_KERNEL = re.compile(r"nccl|rccl|sendrecv|memcpy\s?p(2|to)p", re.IGNORECASE)
"""Names of what a GPU executes in order to communicate with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One traced step, in seconds; what is not accounted for is idle for other reasons."""

    wall_seconds: float
    active_seconds: float
    communication_seconds: float
    input_seconds: float


class Activity:
    """What a device did when; communication and waits count where nothing was active.

    Args:
        active: When it computed.
        communication: When it communicated.
        waits: When the training waited for input; as `union` returns them.
        ticks_per_second: Unit of all points of time.
    """

    def __init__(
        self,
        active: Iterable[Span],
        communication: Iterable[Span],
        waits: list[Span],
        *,
        ticks_per_second: float,
    ) -> None:
        computing = union(active)
        communicating = subtract(union(communication), computing)
        waiting = subtract(subtract(waits, computing), communicating)
        self._ticks_per_second = ticks_per_second
        self._active = Coverage(computing)
        self._communication = Coverage(communicating)
        self._input = Coverage(waiting)

    def times(self, begin: int, end: int) -> StepTimes:
        """Return the times of the step between two points."""
        return StepTimes(
            wall_seconds=(end - begin) / self._ticks_per_second,
            active_seconds=self._active.within(begin, end) / self._ticks_per_second,
            communication_seconds=self._communication.within(begin, end) / self._ticks_per_second,
            input_seconds=self._input.within(begin, end) / self._ticks_per_second,
        )


def busiest(activities: Sequence[Activity], windows: Sequence[Span]) -> tuple[StepTimes, ...]:
    """Return the steps in these windows on the busiest device: a gang is as slow as it."""
    return max(
        (tuple(activity.times(*window) for window in windows) for activity in activities),
        key=lambda steps: sum(step.active_seconds for step in steps),
        default=(),
    )
