"""What a session does with the steps it is fed, apart from counting them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from xonar_prefect.profiling.estimate import Estimator
from xonar_prefect.profiling.window import Window

logger = logging.getLogger(__name__)

Annotate = Callable[[int], AbstractContextManager[object]]
"""Opens a mark around a step with this number in a framework's own trace."""


class Measuring:
    """Measures steps after the warm-up until the estimate has settled."""

    def __init__(self, window: Window, active_clock: Callable[[], float] | None) -> None:
        self.window = window
        self.active_clock = active_clock
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: another kind of step begins."""
        self.estimator = Estimator()
        self.skipped = 0
        self.started_at_s: float | None = None
        self.ended_at_s: float | None = None

    def add(self, wall_seconds: float, active_seconds: float | None, steps: int) -> bool:
        """Add a step that is over; True when that is enough."""
        if self.skipped < self.window.warm_up:
            self.skipped += steps
            return False
        now = time.time()
        if self.started_at_s is None:
            self.started_at_s = now - wall_seconds
        self.ended_at_s = now
        self.estimator.add(wall_seconds, active_seconds, steps)
        return self.estimator.settled(self.window)


class Tracing:
    """Marks steps in a framework's trace and counts them."""

    def __init__(self, steps: int, annotate: Annotate) -> None:
        self.left = steps
        self.annotate = annotate
        # A number left out tells the reader that there was a gap.
        self.number = 0
        self.mark: AbstractContextManager[object] | None = None
        self.done = threading.Event()

    def begin(self) -> None:
        """Open the mark of a step."""
        if self.left <= 0:
            return
        try:
            mark = self.annotate(self.number)
            mark.__enter__()
        except Exception:  # a trace is not worth a training
            logger.warning("Steps cannot be marked in the trace.", exc_info=True)
            self.left = 0
            self.done.set()
        else:
            self.mark = mark

    def end(self, steps: int) -> None:
        """Close the mark of a step that stood for so many."""
        if self.mark is None:
            return
        mark, self.mark = self.mark, None
        mark.__exit__(None, None, None)
        self.number += 1
        self.left -= steps
        if self.left <= 0:
            self.done.set()
