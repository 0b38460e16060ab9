"""Recorded events are made up here: there is no GPU to record any on."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.intervals import Span
from xonar_prefect.profiling.kineto import Event, read_steps

MS = 1_000_000
START = 1_700_000_000_000 * MS


def span(begin_ms: float, end_ms: float) -> Span:
    return START + round(begin_ms * MS), START + round(end_ms * MS)


def event(name: str, begin_ms: float, end_ms: float, gpu: int | None = 0) -> Event:
    return Event(name, *span(begin_ms, end_ms), gpu)


def only_step(events: list[Event], waits: list[Span] | None = None) -> StepTimes:
    (step,) = read_steps([span(0, 100)], waits or [], events, on_gpu=True)
    return step


def test_what_the_gpu_executes_is_active_and_counts_once() -> None:
    step = only_step([event("gemm", 10, 40), event("Memcpy HtoD (Pinned -> Device)", 30, 50)])
    assert step.wall_seconds == pytest.approx(0.1)
    assert step.active_seconds == pytest.approx(0.04)


@pytest.mark.parametrize(
    "name",
    ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "rcclGenericKernel", "Memcpy PtoP (Device -> D)"],
)
def test_communication_counts_where_nothing_computes(name: str) -> None:
    step = only_step([event("gemm", 0, 30), event(name, 20, 60)])
    assert step.active_seconds == pytest.approx(0.03)
    assert step.communication_seconds == pytest.approx(0.03)


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#3", "Optimizer.step#SGD.step", "nccl:all_reduce", "Stream Wait Event"],
)
def test_labels_around_what_is_executed_are_no_work(name: str) -> None:
    assert only_step([event("gemm", 0, 10), event(name, 0, 100)]).active_seconds == pytest.approx(
        0.01
    )


def test_a_wait_for_input_counts_where_nothing_else_happens() -> None:
    step = only_step([event("gemm", 0, 30)], [span(20, 60)])
    assert step.input_seconds == pytest.approx(0.03)


def test_the_data_loaders_own_label_is_a_wait_for_input() -> None:
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    step = only_step([event("gemm", 0, 30), event(loading, 50, 80, gpu=None)])
    assert step.input_seconds == pytest.approx(0.03)


def test_of_several_gpus_the_busiest_counts() -> None:
    step = only_step([event("gemm", 0, 30, gpu=0), event("gemm", 0, 70, gpu=1)])
    assert step.active_seconds == pytest.approx(0.07)


def test_calls_on_the_host_are_no_work_of_a_gpu() -> None:
    step = only_step([event("cudaLaunchKernel", 0, 90, gpu=None), event("gemm", 0, 10)])
    assert step.active_seconds == pytest.approx(0.01)


def test_where_no_gpu_has_executed_anything_nothing_is_known() -> None:
    assert read_steps([span(0, 100)], [], [event("cudaFree", 0, 9, gpu=None)], on_gpu=True) == ()
    assert read_steps([], [], [event("gemm", 0, 10)], on_gpu=True) == ()


def test_every_step_has_its_own_times() -> None:
    events = [event("gemm", 10 * n, 10 * n + n) for n in range(10)]
    windows = [span(10 * n, 10 * n + 10) for n in range(10)]
    steps = read_steps(windows, [], events, on_gpu=True)
    assert [step.active_seconds for step in steps] == pytest.approx([n / 1000 for n in range(10)])


def test_on_the_host_operations_are_active_and_collectives_communicate() -> None:
    events = [
        event("aten::mm", 0, 30, gpu=None),
        event("aten::addmm", 10, 20, gpu=None),
        event("gloo:all_reduce", 30, 70, gpu=None),
        event("Optimizer.step#SGD.step", 0, 100, gpu=None),
    ]
    (step,) = read_steps([span(0, 100)], [], events, on_gpu=False)
    assert step.active_seconds == pytest.approx(0.03)
    assert step.communication_seconds == pytest.approx(0.04)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Keep the garbage collector away: it looks through all that other tests have imported."""
    gc.disable()
    yield
    gc.enable()


def test_reading_is_linear_in_the_number_of_events(no_collection: None) -> None:
    def seconds_to_read(number: int) -> float:
        events = [event("gemm", n, n + 0.5) for n in range(number)]
        windows = [span(10 * n, 10 * n + 10) for n in range(number // 10)]
        best = float("inf")
        for _ in range(3):
            started = time.thread_time()
            read_steps(windows, [], events, on_gpu=True)
            best = min(best, time.thread_time() - started)
        return best

    # Ten times as many would take a hundred times as long if it were quadratic.
    assert seconds_to_read(20_000) < 40 * seconds_to_read(2_000)
