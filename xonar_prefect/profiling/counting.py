"""Counts the steps of a training, so that a reader never sees steps without their time."""

from __future__ import annotations

import time
from typing import NamedTuple


class Progress(NamedTuple):
    """Steps that are over, and how long they took together."""

    steps_done: int = 0
    stepping_seconds: float = 0.0
    last_step_at_s: float | None = None


class StepCounter:
    """Adds up steps. One thread at a time feeds it; any thread may read it.

    A step whose time is not known counts as long as the one before it. Where none is known yet, it
    counts from the first known one on.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._step_seconds: float | None = None
        self._owed = 0

    def add(self, wall_seconds: float, steps: int) -> None:
        """So many steps are over that took so long together."""
        self._step_seconds = wall_seconds / steps
        counted = steps + self._owed
        self._owed = 0
        self._advance(counted, counted * self._step_seconds)

    def add_untimed(self) -> None:
        """A step is over; how long it took is not known."""
        if self._step_seconds is None:
            self._owed += 1
        else:
            self._advance(1, self._step_seconds)

    def finish(self) -> None:
        """No step follows: those whose time never became known count without one."""
        if self._owed:
            self._advance(self._owed, 0.0)
            self._owed = 0

    def _advance(self, steps: int, seconds: float) -> None:
        # One reference is replaced, so that the figures a reader sees belong together.
        self.progress = Progress(
            steps_done=self.progress.steps_done + steps,
            stepping_seconds=self.progress.stepping_seconds + seconds,
            last_step_at_s=time.time(),
        )
