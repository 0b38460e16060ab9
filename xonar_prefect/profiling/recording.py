"""What a session does with the steps it is fed, apart from counting them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum

from xonar_prefect.profiling.contention import (
    UNDISTURBED,
    Account,
    difference,
    displaced_fraction,
)
from xonar_prefect.profiling.estimate import Estimator
from xonar_prefect.profiling.window import Window

logger = logging.getLogger(__name__)

# What others take is worth another try, so long: a partner may wait for the profile.
_PATIENCE_SECONDS = 20.0


class Stretch:
    """Steps measured in a row, and what the kernel counted meanwhile.

    Args:
        first: What it had counted before them; None when unknown.
    """

    def __init__(self, first: Account | None = None) -> None:
        self.estimator = Estimator()
        self.started_at_s: float | None = None
        self.ended_at_s: float | None = None
        self._first = first
        self._last: Account | None = None

    @property
    def accounts(self) -> tuple[Account, Account] | None:
        """What the kernel had counted before and after; None when unknown."""
        return None if self._first is None or self._last is None else (self._first, self._last)

    @property
    def displaced(self) -> float:
        """Share of the time in which others had the cores it wanted; 0 when unknown."""
        if self.accounts is None:
            return 0.0
        return displaced_fraction(difference(*self.accounts), self.accounts[0].cores)

    def add(self, wall_seconds: float, active_seconds: float | None, steps: int) -> None:
        """Add a step that is over."""
        now = time.time()
        if self.started_at_s is None:
            self.started_at_s = now - wall_seconds
        self.ended_at_s = now
        self.estimator.add(wall_seconds, active_seconds, steps)

    def close(self, last: Account | None) -> None:
        """Nothing will be added; the kernel has counted so much by now."""
        self._last = last


class Measuring:
    """Measures steps after the warm-up until the estimate has settled.

    Where others took the processor meanwhile, it tries again, within the most steps of the window
    and for some seconds: a stretch in which nobody did counts alone, if it has the least number of
    steps; else all that was measured does, since the least disturbed of many may only seem so.

    Args:
        window: When measuring starts to count and stops.
        active_clock: Seconds the training was active so far; None where only a trace can tell.
        account: What the kernel has counted; read before and after each stretch.

    Attributes:
        result: What counts of all that was measured.
    """

    def __init__(
        self,
        window: Window,
        active_clock: Callable[[], float] | None,
        account: Callable[[], Account] | None = None,
    ) -> None:
        self.window = window
        self.active_clock = active_clock
        self._account = account
        self.result = self._stretch = Stretch()
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: another kind of step begins."""
        self._skipped = 0
        self._begin(self._read_account() if self.window.warm_up == 0 else None)

    def add(self, wall_seconds: float, active_seconds: float | None, steps: int) -> bool:
        """Add a step that is over; True when that is enough."""
        if self._skipped < self.window.warm_up:
            self.skip(steps)
            return False
        self.result.add(wall_seconds, active_seconds, steps)
        self._stretch.add(wall_seconds, active_seconds, steps)
        is_last = self.result.estimator.steps >= self.window.maximum
        if not (is_last or self._stretch.estimator.settled(self.window)):
            return False
        last = self._read_account()
        self._stretch.close(last)
        self.result.close(last)
        is_long = self._stretch.estimator.steps >= self.window.minimum
        if is_long and self._stretch.displaced <= UNDISTURBED:
            self.result = self._stretch
            return True
        if is_last or self.active_clock is None or not self._has_time:
            return True
        self._stretch = Stretch(last)
        return False

    def skip(self, steps: int) -> None:
        """Note steps that are over and not measured; they are a part of the warm-up."""
        if self._skipped >= self.window.warm_up:
            return
        self._skipped += steps
        if self._skipped >= self.window.warm_up:
            self._begin(self._read_account())

    def close(self) -> None:
        """Nothing more will be measured."""
        self.result.close(self._read_account())

    def _begin(self, first: Account | None) -> None:
        self.result = Stretch(first)
        self._stretch = Stretch(first)

    @property
    def _has_time(self) -> bool:
        began_at_s = self.result.started_at_s
        return began_at_s is not None and time.time() - began_at_s < _PATIENCE_SECONDS

    def _read_account(self) -> Account | None:
        try:
            return None if self._account is None else self._account()
        except OSError:
            logger.debug("The kernel does not tell who used the processor.", exc_info=True)
            return None


class Mark(str, Enum):
    """What is marked in a trace; the names by which its reader finds them."""

    STEP = "xonar step"
    INPUT = "xonar input"


class StepDropped(Exception):  # noqa: N818
    """Tells an open mark that what it marks is no step; it is never seen outside."""


Annotate = Callable[[Mark], AbstractContextManager[object]]
"""Opens a mark in a framework's own trace."""


class Tracing:
    """Marks steps in a framework's trace, and between them the wait for input."""

    def __init__(self, steps: int, annotate: Annotate) -> None:
        self._left = steps
        self._annotate = annotate
        self._open: list[AbstractContextManager[object]] = []
        self._steps = 0
        self.done = threading.Event()

    def begin(self) -> None:
        """A step begins; the one before is over with its wait for input."""
        self.pause()
        if self._left > 0:
            self._mark(Mark.STEP)

    def end(self, steps: int) -> None:
        """The step ends, having stood for so many; what follows is its wait for input."""
        if self._open:
            self._steps = steps
            self._mark(Mark.INPUT)

    def pause(self) -> None:
        """Nothing that follows belongs to a step."""
        if not self._open:
            return
        while self._open:
            self._open.pop().__exit__(None, None, None)
        self._left -= self._steps
        self._steps = 0
        if self._left <= 0:
            self.done.set()

    def drop(self) -> None:
        """What was marked is no step after all; a trace that can forget it does."""
        while self._open:
            self._open.pop().__exit__(StepDropped, StepDropped(), None)
        self._steps = 0

    def waiting(self) -> AbstractContextManager[object]:
        """Mark that the training waits for input while the body runs."""
        return self._annotate(Mark.INPUT) if self._open else contextlib.nullcontext()

    def _mark(self, mark: Mark) -> None:
        try:
            opened = self._annotate(mark)
            opened.__enter__()
        except Exception:  # a trace is not worth a training
            logger.warning("Steps cannot be marked in the trace.", exc_info=True)
            self._left = 0
            self.done.set()
        else:
            self._open.append(opened)
