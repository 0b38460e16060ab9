"""Measures one training after another in this process: sessions, sampling, reports, profiles."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from xonar_prefect.core.models import Profile
from xonar_prefect.profiling import frameworks
from xonar_prefect.profiling.change import ChangeWatch, Pace, is_news
from xonar_prefect.profiling.children import Children
from xonar_prefect.profiling.keras import watching_keras
from xonar_prefect.profiling.marks import activated
from xonar_prefect.profiling.measurement import (
    Measurement,
    idle_shares,
    measure_on_gpu,
    measure_on_processor,
)
from xonar_prefect.profiling.processes import ProcessTree, processor_cores
from xonar_prefect.profiling.progress import Reporter
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.torch_steps import watching_torch
from xonar_prefect.profiling.torch_tracer import watch_users_profilers
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory

logger = logging.getLogger(__name__)

_LEAST_BLOCK_SECONDS = 2.0


class ProcessProbe:
    """What this process has once, whatever trainings run in it: its trees and its reporter.

    Args:
        directory: Where progress is reported.
        command: The process whose tree is active: all workers and servers of a distributed training
            use the same cores, and not all of them take steps. None is this process.

    Attributes:
        tree: This process and its descendants; their memory is its own.
        command: All processes whose processor time makes the training active.
    """

    def __init__(self, directory: RunDirectory | None, command: int | None = None) -> None:
        self.tree = ProcessTree()
        self.command = self.tree if command in (None, self.tree.root) else ProcessTree(command)
        self.reporter = Reporter(directory, self.tree)
        self.cores = processor_cores()

    def active_seconds(self) -> float:
        """Return the processor time of the command per core it may use."""
        return self.command.processor_seconds() / self.cores


class MeasuredTraining:
    """One training, from the first attempt at it to the last.

    Its body runs within `attempt()`, on any thread; `measure()` runs beside it on another one and
    returns as soon as there is something to say.

    Args:
        probe: The process it runs in.
        window: When to measure.
        on_gpu: Its active time is that of a GPU, not of the processor; None to find out from
            what its framework computes on.
        wanted: False to count and report steps only.
        memory_limit_mib: Cap of the framework's allocator on each GPU, in each process.
    """

    def __init__(
        self,
        probe: ProcessProbe,
        window: Window,
        *,
        on_gpu: bool | None = False,
        wanted: bool = True,
        memory_limit_mib: int | None = None,
    ) -> None:
        self._probe = probe
        self._window = window
        self._on_gpu = on_gpu
        self._wanted = wanted
        self._memory_limit_mib = None if on_gpu is False else memory_limit_mib
        self._children = Children()
        self._session: Session | None = None
        self._measured: tuple[Session, Measurement] | None = None
        self._sessions: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        self.took_turn = False
        self.gave_way = False

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Run an attempt at the training in the body; its errors pass, ours never do."""
        with ExitStack() as stack:
            try:
                self._set_up(stack)
            except Exception:
                logger.warning("The training is not measured.", exc_info=True)
            yield

    def close(self) -> None:
        """No attempt will follow."""
        self._sessions.put(None)

    def measure(self) -> Measurement:
        """Wait for a profile; empty where no attempt took a step after the warm-up."""
        while (session := self._sessions.get()) is not None:
            measurement = self._measure(session)
            if measurement.estimate is not None:
                self._wanted = False
                self._measured = session, measurement
                return measurement
        return Measurement()

    def so_far(self) -> Measurement | None:
        """Return what the steps say that were measured until now; None before there are any."""
        session = self._session
        if session is None or session.measured_from_to_s is None:
            return None
        started_at_s, ended_at_s = session.measured_from_to_s
        estimate = session.estimate
        source: str | None = "cpu-time"
        if estimate is not None and self._computes_on_gpu():  # only a trace tells about a GPU
            estimate = replace(estimate, active_fraction=None, active_fraction_interval=None)
            source = None
        return Measurement(
            estimate=estimate,
            source=source,
            started_at_s=started_at_s,
            ended_at_s=ended_at_s,
        )

    def changes(self) -> Iterator[Measurement]:
        """After `measure`, wait for every time the training changes and yield what it became.

        It ends when the attempt at the training ends that was measured.
        """
        if self._measured is None:
            return
        session, known = self._measured
        told = known
        patience = 1.0
        while known.estimate is not None:
            watch = ChangeWatch(
                known.estimate.step_seconds, least_seconds=patience * _LEAST_BLOCK_SECONDS
            )
            session.watch(watch).wait()
            if session.finished:
                return
            session.measure_again()
            measurement = self._measure(session)
            if measurement.estimate is None or measurement.estimate.steps < self._window.minimum:
                return
            if measurement.is_undisturbed and is_news(_pace(told), _pace(measurement)):
                yield measurement
                told = measurement
            else:  # a partner, most likely: they come and go
                patience *= 2
            known = measurement

    def _measure(self, session: Session) -> Measurement:
        of_children = self._children.measurement(session.measured)
        if of_children.estimate is not None and session.estimate is None:
            return of_children
        session.measured.wait()
        tracer = frameworks.tracer()
        if self._computes_on_gpu():
            return measure_on_gpu(session, tracer, self._window)
        return measure_on_processor(session, tracer)

    def _computes_on_gpu(self) -> bool:
        return frameworks.gpu_model() is not None if self._on_gpu is None else self._on_gpu

    def _set_up(self, stack: ExitStack) -> None:
        session = Session(
            self._window,
            None if self._on_gpu else self._probe.active_seconds,
            account=self._probe.command.account,
            measure=self._wanted,
        )
        self._session = session
        stack.callback(self._probe.reporter.end, session)
        if not stack.enter_context(activated(session)):
            self.gave_way = True
            return
        self.took_turn = True
        self._probe.reporter.begin(session, self._children.progress, profiling=self._wanted)
        if self._memory_limit_mib is not None:
            stack.enter_context(frameworks.limited_memory(self._memory_limit_mib))
        watch_users_profilers()
        stack.enter_context(watching_keras())
        stack.enter_context(watching_torch())
        stack.enter_context(
            self._children.watching(measure=self._wanted, memory_limit_mib=self._memory_limit_mib)
        )
        if self._wanted:
            self._sessions.put(session)

    def peak_memory(self) -> tuple[int | None, str | None]:
        """Return the peak so far in MiB, and where it comes from."""
        if self._computes_on_gpu():
            peaks = (frameworks.peak_memory_mib(), self._children.peak_gpu_memory_mib())
            peak = max((each for each in peaks if each is not None), default=None)
            return peak, "allocator" if peak is not None else None
        peak = self._probe.reporter.peak_resident_mib
        return peak, "rss" if peak is not None else None


def profile_of(
    measurement: Measurement,
    *,
    key: str,
    device_model: str,
    device: str | None,
    joint: bool,
    code_version: str | None,
    peak_memory: tuple[int | None, str | None],
    earlier: Profile | None = None,
) -> Profile | None:
    """Make a profile of what was measured; None where no step was.

    Beside a partner neither the step time nor the active share of it is that of the training
    alone, so both stay unknown; the memory is its own. The peak of an earlier profile is kept as a
    floor: code that needs less now may need as much again.
    """
    estimate = measurement.estimate
    if estimate is None:
        return None
    peak, source = peak_memory
    if earlier is not None and (earlier.peak_memory_mib or 0) > (peak or 0):
        peak, source = earlier.peak_memory_mib, earlier.memory_source
    active = None if joint else measurement.active_fraction
    shares: tuple[float | None, float | None, float | None] = (None, None, None)
    if active is not None and measurement.split is not None:
        shares = idle_shares(active, measurement.split)
    return Profile(
        key=key,
        device_model=device_model,
        active_fraction=active,
        communication_fraction=shares[0],
        input_fraction=shares[1],
        other_fraction=shares[2],
        step_seconds=None if joint else estimate.step_seconds,
        step_seconds_interval=None if joint else estimate.step_seconds_interval,
        active_fraction_interval=None if joint else measurement.active_fraction_interval,
        peak_memory_mib=peak,
        memory_source=source,
        steps=estimate.steps,
        source=measurement.source,
        framework=measurement.framework or frameworks.version(),
        device=device,
        joint=joint,
        code_version=code_version,
        measured_at_s=measurement.ended_at_s or 0.0,
    )


def _pace(measurement: Measurement) -> Pace:
    estimate, displaced = measurement.estimate, measurement.displaced
    if estimate is None:
        return Pace(active_seconds=None, undisturbed_seconds=None)
    seconds, active = estimate.step_seconds, estimate.active_fraction
    return Pace(
        active_seconds=None if active is None else active * seconds,
        undisturbed_seconds=None if displaced is None else seconds * (1.0 - displaced),
    )
