"""Steps and waits by the host's clock, for profilers that cannot mark them themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.intervals import Span
from xonar_prefect.profiling.kineto import read_steps
from xonar_prefect.profiling.recording import Annotate, Mark


class HostMarks:
    """Notes when steps and waits began and ended, in nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._steps: list[Span] = []
        self.waits: list[Span] = []

    @property
    def steps(self) -> list[Span]:
        """The steps that were marked, in order."""
        return sorted(self._steps)

    @contextlib.contextmanager
    def mark(self, mark: Mark) -> Iterator[None]:
        """Mark the body."""
        begin_ns = time.time_ns()
        yield  # a step that was dropped leaves with an error and is not noted
        (self._steps if mark is Mark.STEP else self.waits).append((begin_ns, time.time_ns()))


class WaitTracer:
    """Tells only how long steps waited for input; it records nothing that could slow them down."""

    source = "host-marks"

    def __init__(self) -> None:
        self._marks = HostMarks()

    def start(self) -> Annotate:
        """Begin to note."""
        self._marks = HostMarks()
        return self._marks.mark

    def stop(self) -> tuple[StepTimes, ...]:
        """Return the steps; what is no wait is other."""
        return read_steps(self._marks.steps, self._marks.waits, (), on_gpu=False)
