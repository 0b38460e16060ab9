"""The measuring session: it is fed with the steps of one training, and counts and measures them.

A step lasts from its beginning to the beginning of the next one, so that waiting for input counts.
Before a gap (end of an epoch, validation, a checkpoint) a step lasts to its own end, and the gap is
no step. Measured and merely counted steps follow this one definition, so step times of the profile
and of later progress can be compared.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from xonar_prefect.profiling.change import ChangeWatch
from xonar_prefect.profiling.contention import Account
from xonar_prefect.profiling.counting import Progress, StepCounter
from xonar_prefect.profiling.estimate import Estimate
from xonar_prefect.profiling.recording import Annotate, Measuring, Tracing
from xonar_prefect.profiling.window import Window


class Session:
    """Counts and measures the steps of one training in this process.

    One thread at a time feeds it; any thread may read it. Feeding costs about a microsecond once
    nothing is measured any more.

    Args:
        window: When measuring starts to count and stops.
        active_clock: Seconds the training was active so far; None where only a trace can tell.
        account: What the kernel has counted, to tell what others took from the training.
        measure: False to count only.
    """

    def __init__(
        self,
        window: Window,
        active_clock: Callable[[], float] | None,
        *,
        account: Callable[[], Account] | None = None,
        measure: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._counter = StepCounter()
        self._total: int | None = None
        self._again = functools.partial(Measuring, window, active_clock, account)
        self._latest = self._again() if measure else Measuring(window, None)
        self._measuring: Measuring | None = self._latest if measure else None
        self._tracing: Tracing | None = None
        self._began: tuple[float, float | None] | None = None
        self._ended: tuple[float, float | None, int] | None = None
        self._nested = 0
        self._explicit = False
        self._finished = False
        self._watch: ChangeWatch | None = None
        self.measured = threading.Event()
        self.changed = threading.Event()
        if not measure:
            self.measured.set()

    # What is read

    @property
    def progress(self) -> Progress:
        """Steps that are over so far."""
        return self._counter.progress

    @property
    def steps_total(self) -> int | None:
        """Steps in all; None when unknown. Never less than the steps done."""
        total = self._total
        return None if total is None else max(total, self._counter.progress.steps_done)

    @property
    def finished(self) -> bool:
        """The training is over."""
        return self._finished

    @property
    def estimate(self) -> Estimate | None:
        """What the measured steps say; None when there was none after the warm-up."""
        return self._latest.result.estimator.estimate()

    @property
    def measured_from_to_s(self) -> tuple[float, float] | None:
        """When the measured steps began and ended, seconds since the epoch."""
        result = self._latest.result
        started, ended = result.started_at_s, result.ended_at_s
        return None if started is None or ended is None else (started, ended)

    @property
    def accounts(self) -> tuple[Account, Account] | None:
        """What the kernel had counted when measuring began and when it ended."""
        return self._latest.result.accounts

    # What feeds it

    def begin_step(self, *, explicit: bool = False) -> None:
        """A step begins; the one before, if nothing came between, is over.

        A step inside a step is a part of it. Steps that the user marked (`explicit`) win over
        those that a framework reports, from the first mark on.
        """
        if explicit:
            self._prefer_explicit()
        elif self._explicit:
            return
        if self._began is not None and self._ended is None:
            self._nested += 1
            return
        now = self._reading()
        if self._ended is not None:
            self._close(*now)
            now = self._after(now)
        self._began = now
        if (tracing := self._tracing) is not None:
            tracing.begin()

    def end_step(self, steps: int = 1, *, explicit: bool = False) -> None:
        """The step ends; it stood for so many steps of the training."""
        if explicit != self._explicit or self._began is None or self._ended is not None:
            return
        if self._nested:
            self._nested -= 1
            return
        self._ended = (*self._reading(), steps)
        if (tracing := self._tracing) is not None:
            tracing.end(steps)

    def drop_step(self, *, explicit: bool = False) -> None:
        """The open step failed: it does not count."""
        if explicit != self._explicit:
            return
        if self._nested:
            self._nested -= 1
            return
        if self._ended is None:
            self._began = None
            if (tracing := self._tracing) is not None:
                tracing.drop()

    def turn_step(self) -> None:
        """A step ends here and the next one begins: for those who are told only of its end.

        A step counts also where its beginning was not seen, or where `drop_step` told that
        something came in between; only its time is not known then.
        """
        if self._explicit:
            return
        now = self._reading()
        tracing = self._tracing
        if self._began is None:
            self._counter.add_untimed()
            if self._measuring is not None:
                self._measuring.skip(1)
        else:
            self._ended = (*now, 1)
            if tracing is not None:
                tracing.end(1)
            self._close(*now)
        self._began = self._after(now)
        if tracing is not None:
            tracing.begin()

    def waiting(self) -> AbstractContextManager[object]:
        """While the body runs, the training waits for input, within its step."""
        tracing = self._tracing
        return nullcontext() if tracing is None else tracing.waiting()

    def pause(self) -> None:
        """What follows is no step: a step that has ended lasts to its end; an open one goes on."""
        if self._ended is None:
            return
        self._close(self._ended[0], self._ended[1])
        self._began = None
        if (tracing := self._tracing) is not None:
            tracing.pause()

    def expect(self, steps: int | None) -> None:
        """A framework will take so many more steps; None when unknown."""
        if not self._explicit:
            self._total = None if steps is None else self._counter.progress.steps_done + steps

    def expect_total(self, steps: int) -> None:
        """The user says that the whole training has so many steps."""
        self._prefer_explicit()
        self._total = steps

    # What drives it, from another thread

    def trace(self, steps: int, annotate: Annotate) -> threading.Event:
        """Mark the next steps in a framework's trace; the event is set after so many."""
        tracing = Tracing(steps, annotate)
        if self._finished:
            tracing.done.set()
        self._tracing = tracing
        if self._finished:  # it may have finished between the two
            tracing.done.set()
        return tracing.done

    def stop_tracing(self) -> None:
        """Mark no more steps."""
        self._tracing = None

    def watch(self, watch: ChangeWatch) -> threading.Event:
        """Compare the steps to come with what was measured; the event is set when they differ."""
        self.changed.clear()
        self._watch = watch
        if self._finished:  # it may have finished in between
            self.changed.set()
        return self.changed

    def measure_again(self) -> None:
        """Forget what was measured and measure the steps to come."""
        self.measured.clear()
        self._latest = self._measuring = self._again()
        if self._finished:
            self._measuring = None
            self.measured.set()

    def finish(self) -> None:
        """The training is over; whoever waits goes on with what there is."""
        self.pause()
        self._began = None
        self._counter.finish()
        self._finished = True
        if self._measuring is not None:
            self._measuring.close()
        self._measuring = None
        self.measured.set()
        self.changed.set()
        if (tracing := self._tracing) is not None:
            tracing.done.set()

    def detach(self) -> None:
        """Only count from now on: this process was forked, and whoever measures is not in it."""
        self._measuring = self._tracing = self._watch = None

    def _reading(self) -> tuple[float, float | None]:
        measuring = self._measuring
        if measuring is None or measuring.active_clock is None:
            return self._clock(), None
        return self._clock(), measuring.active_clock()

    def _after(self, now: tuple[float, float | None]) -> tuple[float, float | None]:
        """Return when a step begins whose predecessor was just measured: that is not its time."""
        return now if self._measuring is None else self._reading()

    def _close(self, at: float, active_at: float | None) -> None:
        assert self._began is not None and self._ended is not None  # noqa: S101, PT018
        began, active_began = self._began
        steps = self._ended[2]
        self._ended = None
        wall_seconds = at - began
        self._counter.add(wall_seconds, steps)
        measuring = self._measuring
        if measuring is None:
            if self._watch is not None and self._watch.add(wall_seconds, steps):
                self._watch = None
                self.changed.set()
            return
        active = None if active_at is None or active_began is None else active_at - active_began
        if active is None and measuring.active_clock is not None:
            return  # measuring began within this step
        if measuring.add(wall_seconds, active, steps):
            self._measuring = None
            self.measured.set()

    def _prefer_explicit(self) -> None:
        if self._explicit:
            return
        self._explicit = True
        self._total = None
        self._began = self._ended = None
        self._nested = 0
        if self._measuring is not None:
            self._measuring.restart()
