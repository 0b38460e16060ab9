"""Measures one training after another in this process: sessions, sampling, reports, profiles."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Iterator
from contextlib import ExitStack

from xonar_prefect.core.models import Profile
from xonar_prefect.profiling import tensorflow
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
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory

logger = logging.getLogger(__name__)


class ProcessProbe:
    """What this process has once, whatever trainings run in it: its tree and its reporter."""

    def __init__(self, directory: RunDirectory | None) -> None:
        self.tree = ProcessTree()
        self.reporter = Reporter(directory, self.tree)
        self._cores = processor_cores()

    def active_seconds(self) -> float:
        """Return the processor time of the tree per core it may use."""
        return self.tree.processor_seconds() / self._cores


class MeasuredTraining:
    """One training, from the first attempt at it to the last.

    Its body runs within `attempt()`, on any thread; `measure()` runs beside it on another one and
    returns as soon as there is something to say.

    Args:
        probe: The process it runs in.
        window: When to measure.
        on_gpu: Its active time is that of a GPU, not of the processor.
        wanted: False to count and report steps only.
        memory_limit_mib: Cap of the framework's allocator on each GPU.
    """

    def __init__(
        self,
        probe: ProcessProbe,
        window: Window,
        *,
        on_gpu: bool = False,
        wanted: bool = True,
        memory_limit_mib: int | None = None,
    ) -> None:
        self._probe = probe
        self._window = window
        self._on_gpu = on_gpu
        self._wanted = wanted
        self._memory_limit_mib = memory_limit_mib if on_gpu else None
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
            if self._on_gpu:
                measurement = measure_on_gpu(session, tensorflow.Tracer(), self._window)
            else:
                measurement = measure_on_processor(session, tensorflow.Tracer())
            if measurement.estimate is not None:
                self._wanted = False
                return measurement
        return Measurement()

    def _set_up(self, stack: ExitStack) -> None:
        session = Session(
            self._window,
            None if self._on_gpu else self._probe.active_seconds,
            measure=self._wanted,
        )
        stack.callback(self._probe.reporter.end, session)
        if not stack.enter_context(activated(session)):
            self.gave_way = True
            return
        self.took_turn = True
        self._probe.reporter.begin(session, profiling=self._wanted)
        if self._memory_limit_mib is not None:
            stack.enter_context(tensorflow.limited_memory(self._memory_limit_mib))
        stack.enter_context(watching_keras())
        if self._wanted:
            self._sessions.put(session)

    def peak_memory(self) -> tuple[int | None, str | None]:
        """Return the peak so far in MiB, and where it comes from."""
        if self._on_gpu:
            peak = tensorflow.peak_memory_mib()
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
    active = None if joint else estimate.active_fraction
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
        active_fraction_interval=None if joint else estimate.active_fraction_interval,
        peak_memory_mib=peak,
        memory_source=source,
        steps=estimate.steps,
        source=measurement.source,
        framework=tensorflow.version(),
        device=device,
        joint=joint,
        code_version=code_version,
        measured_at_s=measurement.ended_at_s or 0.0,
    )
