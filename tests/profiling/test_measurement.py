from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.estimate import Estimate
from xonar_prefect.profiling.measurement import (
    Measurement,
    Split,
    idle_shares,
    measure_on_gpu,
    measure_on_processor,
)
from xonar_prefect.profiling.recording import Annotate, Mark
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window

SHORT = Window(warm_up=0, minimum=2, maximum=8)


class FakeTracer:
    """Keeps the promises of a tracer: returns one step's times for every step it was shown."""

    source = "fake"

    def __init__(self, step: StepTimes, *, available: bool = True) -> None:
        self._step = step
        self._available = available
        self._marked = 0
        self.started = threading.Event()
        self.sizes: list[int] = []

    def start(self) -> Annotate | None:
        if not self._available:
            return None
        self._marked = 0
        self.started.set()
        return self._mark

    def stop(self) -> Sequence[StepTimes]:
        self.sizes.append(self._marked)
        return [self._step] * self._marked

    @contextlib.contextmanager
    def _mark(self, mark: Mark) -> Iterator[None]:
        yield
        self._marked += mark is Mark.STEP


HALF_ACTIVE = StepTimes(
    wall_seconds=0.10, active_seconds=0.05, communication_seconds=0.03, input_seconds=0.01
)


def take_steps(session: Session, stop: threading.Event) -> None:
    while not stop.is_set():
        session.begin_step()
        session.end_step()
    session.finish()


@contextlib.contextmanager
def training(session: Session) -> Iterator[None]:
    """A training that takes steps until the body has ended."""
    stop = threading.Event()
    thread = threading.Thread(target=take_steps, args=(session, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += seconds
        return now[0]

    return read


def on_processor(active_share: float) -> Session:
    return Session(SHORT, ticking(active_share), clock=ticking(1.0))


def on_gpu() -> Session:
    return Session(SHORT, None, clock=ticking(1.0))


def test_on_a_processor_the_clock_tells_what_is_active_and_the_trace_why_the_rest_is_idle() -> None:
    session = on_processor(0.25)
    with training(session):
        measured = measure_on_processor(session, FakeTracer(HALF_ACTIVE))
    assert measured.estimate is not None
    assert measured.estimate.active_fraction == pytest.approx(0.25)
    assert measured.source == "cpu-time"
    assert measured.split == Split(
        active=pytest.approx(0.5),
        communication=pytest.approx(0.3),
        input=pytest.approx(0.1),
        other=pytest.approx(0.1),
    )


def test_on_a_processor_a_trace_is_for_information_only() -> None:
    session = on_processor(0.25)
    with training(session):
        measured = measure_on_processor(session, FakeTracer(HALF_ACTIVE, available=False))
    assert measured.estimate is not None
    assert measured.split is None


def test_few_steps_are_traced_where_a_step_is_long() -> None:
    tracer = FakeTracer(HALF_ACTIVE)
    session = Session(SHORT, ticking(50.0), clock=ticking(100.0))
    with training(session):
        measure_on_processor(session, tracer)
    assert tracer.sizes == [2]


def test_on_a_gpu_the_trace_tells_what_is_active() -> None:
    session = on_gpu()
    with training(session):
        measured = measure_on_gpu(session, FakeTracer(HALF_ACTIVE), SHORT)
    assert measured.estimate is not None
    assert measured.estimate.active_fraction == pytest.approx(0.5)
    # A step takes two readings of the clock; it is timed without the trace.
    assert measured.estimate.step_seconds == pytest.approx(2.0)
    assert measured.source == "fake"


def test_on_a_gpu_traces_grow_until_the_estimate_has_settled() -> None:
    class Jittery(FakeTracer):
        def stop(self) -> Sequence[StepTimes]:
            super().stop()
            return [
                StepTimes(
                    wall_seconds=0.1,
                    active_seconds=0.1 * (index % 2),
                    communication_seconds=0.0,
                    input_seconds=0.0,
                )
                for index in range(self.sizes[-1])
            ]

    tracer = Jittery(HALF_ACTIVE)
    session = on_gpu()
    with training(session):
        measured = measure_on_gpu(session, tracer, SHORT)
    assert tracer.sizes == [2, 4, 2]
    assert measured.estimate is not None
    assert measured.estimate.active_fraction == pytest.approx(0.5)


def test_on_a_gpu_without_a_trace_the_active_fraction_is_unknown() -> None:
    session = on_gpu()
    with training(session):
        measured = measure_on_gpu(session, FakeTracer(HALF_ACTIVE, available=False), SHORT)
    assert measured.estimate is not None
    assert measured.estimate.active_fraction is None
    assert measured.estimate.step_seconds == pytest.approx(2.0)
    assert measured.source is None


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_a_training_that_takes_no_step_measures_nothing(on_a_gpu: bool) -> None:
    session = on_gpu() if on_a_gpu else on_processor(1.0)
    session.finish()
    tracer = FakeTracer(HALF_ACTIVE)
    measured = (
        measure_on_gpu(session, tracer, SHORT)
        if on_a_gpu
        else measure_on_processor(session, tracer)
    )
    assert measured == Measurement()
    assert not tracer.started.is_set()


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_a_training_that_ends_while_it_is_traced_keeps_nobody_waiting(on_a_gpu: bool) -> None:
    session = on_gpu() if on_a_gpu else on_processor(0.5)
    tracer = FakeTracer(HALF_ACTIVE)
    found: list[Measurement] = []

    def measure() -> None:
        found.append(
            measure_on_gpu(session, tracer, SHORT)
            if on_a_gpu
            else measure_on_processor(session, tracer)
        )

    thread = threading.Thread(target=measure)
    thread.start()
    while not session.measured.is_set():
        session.begin_step()
        session.end_step()
    assert tracer.started.wait(120)
    session.finish()
    thread.join(120)
    assert not thread.is_alive()
    assert found[0].estimate is not None


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_a_long_pause_keeps_the_profile_from_nobody(on_a_gpu: bool) -> None:
    session = Session(
        SHORT, None if on_a_gpu else ticking(1e-9), clock=ticking(1e-9)
    )  # nothing is waited for beyond the patience
    while not session.measured.is_set():
        session.begin_step()
        session.end_step()
    session.pause()
    tracer = FakeTracer(HALF_ACTIVE)
    measured = (
        measure_on_gpu(session, tracer, SHORT, patience_seconds=0.01)
        if on_a_gpu
        else measure_on_processor(session, tracer, patience_seconds=0.01)
    )
    assert tracer.started.is_set()
    assert measured.estimate is not None
    assert measured.split is None


def test_idle_shares_fill_the_idle_time_in_the_proportions_of_the_trace() -> None:
    split = Split(active=0.2, communication=0.6, input=0.2, other=0.0)
    assert idle_shares(0.8, split) == pytest.approx((0.15, 0.05, 0.0))


def test_idle_time_that_the_trace_does_not_see_is_other() -> None:
    split = Split(active=1.0, communication=0.0, input=0.0, other=0.0)
    assert idle_shares(0.8, split) == pytest.approx((0.0, 0.0, 0.2))


def test_what_others_took_of_the_core_is_not_counted_as_idle() -> None:
    estimate = Estimate(
        steps=20,
        step_seconds=0.2,
        step_seconds_interval=None,
        active_fraction=0.3,
        active_fraction_interval=(0.25, 0.35),
    )
    measured = Measurement(estimate=estimate, displaced=0.5)
    # What it waited for may have come while it wanted the core: it may be as idle as it seemed.
    assert measured.active_fraction == pytest.approx(0.3 / 0.7)
    assert measured.active_fraction_interval == pytest.approx((0.25, 0.7))
    assert measured.estimate is estimate
    # Never more than all of it, however coarse the kernel's account is.
    assert replace(measured, displaced=0.9).active_fraction == 1.0


def test_where_the_kernel_tells_nothing_the_measured_fraction_stands() -> None:
    session = on_processor(0.25)
    with training(session):
        measured = measure_on_processor(session, FakeTracer(HALF_ACTIVE))
    assert measured.displaced is None
    assert measured.active_fraction == pytest.approx(0.25)


def test_waits_that_fit_into_the_idle_time_count_as_they_were_seen() -> None:
    split = Split(active=0.5, communication=0.1, input=0.1, other=0.3)
    assert idle_shares(0.3, split) == pytest.approx((0.1, 0.1, 0.5))
