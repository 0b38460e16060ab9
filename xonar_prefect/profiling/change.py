"""Notices from its step times that a training has become another one: a new phase, another batch.

A partner that comes or goes changes step times too, so what is noticed is measured again before
anybody is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

_LEAST_STEPS = 20
_LEAST_SECONDS = 2.0
_RATIO = 1.3
# One block may be odd by chance, or by what happened on the machine.
_BLOCKS_IN_A_ROW = 2


class ChangeWatch:
    """Compares blocks of steps with what was measured.

    The median of a block stands for it: a single long step (a checkpoint that nobody announced)
    changes nothing.

    Args:
        step_seconds: Time of a step as measured.
        least_seconds: A block lasts at least so long, and has at least 20 steps.
    """

    def __init__(self, step_seconds: float, *, least_seconds: float = _LEAST_SECONDS) -> None:
        self._expected = step_seconds
        self._least_seconds = least_seconds
        self._block: list[float] = []
        self._seconds = 0.0
        self._odd_in_a_row = 0

    def add(self, wall_seconds: float, steps: int = 1) -> bool:
        """Add steps that are over; True when the training has changed."""
        self._block.append(wall_seconds / steps)
        self._seconds += wall_seconds
        if len(self._block) < _LEAST_STEPS or self._seconds < self._least_seconds:
            return False
        ratio = median(self._block) / self._expected
        self._block.clear()
        self._seconds = 0.0
        is_odd = not 1 / _RATIO <= ratio <= _RATIO
        self._odd_in_a_row = self._odd_in_a_row + 1 if is_odd else 0
        return self._odd_in_a_row >= _BLOCKS_IN_A_ROW


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What steps are like, whoever else is on the device; None where that is unknown.

    Attributes:
        active_seconds: Active time of a step.
        undisturbed_seconds: Time of a step without what others took of it.
    """

    active_seconds: float | None
    undisturbed_seconds: float | None


def is_news(before: Pace, after: Pace) -> bool:
    """Whether the training itself has changed, and not only what is beside it.

    On a GPU nobody knows what a partner took of a step; there only the active time tells.
    """
    return any(
        old is not None and new is not None and old > 0 and not 1 / _RATIO <= new / old <= _RATIO
        for old, new in (
            (before.active_seconds, after.active_seconds),
            (before.undisturbed_seconds, after.undisturbed_seconds),
        )
    )
