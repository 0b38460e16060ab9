"""PyTorch's memory with stand-ins, since no GPU is needed here, and its real profiler."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from xonar_prefect.profiling import torch as ours
from xonar_prefect.profiling.recording import Mark
from xonar_prefect.profiling.torch_tracer import TorchTracer, _event

MIB = 1024 * 1024


def with_torch(test: Any) -> Any:
    """Mark a test that needs the real PyTorch."""
    missing = find_spec("torch") is None
    return pytest.mark.torch(pytest.mark.skipif(missing, reason="PyTorch is not installed")(test))


@pytest.fixture(scope="module")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    return torch


class FakeCuda:
    """Keeps the promises of `torch.cuda` about starting, memory and caps."""

    def __init__(self, reserved_mib: tuple[int, ...] = (0,), total_mib: int = 16_000) -> None:
        self._reserved_mib = reserved_mib
        self._total_mib = total_mib
        self._is_initialized = False
        self._at_start: list[Callable[[], None]] = []
        self.fractions: dict[int, float] = {}

    def is_initialized(self) -> bool:
        return self._is_initialized

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self._is_initialized:
            call()
        else:
            self._at_start.append(call)

    def start(self) -> None:
        self._is_initialized = True
        for call in self._at_start:
            call()

    def device_count(self) -> int:
        return len(self._reserved_mib)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, gpu: int) -> str:
        return f"Fake GPU {gpu}"

    def get_device_properties(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=self._total_mib * MIB)

    def max_memory_reserved(self, gpu: int) -> int:
        return self._reserved_mib[gpu] * MIB

    def set_per_process_memory_fraction(self, fraction: float, gpu: int) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError("Invalid fraction value")
        self.fractions[gpu] = fraction


def fake_torch(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> FakeCuda:
    module = ModuleType("torch")
    module.__dict__.update(cuda=cuda, __version__="2.0-fake")
    monkeypatch.setitem(sys.modules, "torch", module)
    return cuda


def test_without_torch_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert ours.version() is None
    assert ours.peak_memory_mib() is None
    assert ours.gpu_model() is None


def fake_distributed(*, initialized: bool) -> SimpleNamespace:
    return SimpleNamespace(is_available=lambda: True, is_initialized=lambda: initialized)


def test_on_the_processor_waits_for_input_are_told_and_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_torch(monkeypatch, FakeCuda())
    sys.modules["torch"].distributed = fake_distributed(initialized=False)  # type: ignore[attr-defined]
    tracer = ours.tracer()
    annotate = tracer.start()
    assert annotate is not None
    for _ in range(2):
        with annotate(Mark.STEP), annotate(Mark.INPUT):
            time.sleep(0.01)  # a slow source of data
    steps = tracer.stop()
    assert len(steps) == 2
    assert all(0.009 < step.input_seconds <= step.wall_seconds for step in steps)
    assert not [each for each in threading.enumerate() if each.name == "xonar-kineto"]


def test_between_workers_on_the_processor_nobody_knows_why_a_step_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_torch(monkeypatch, FakeCuda())
    sys.modules["torch"].distributed = fake_distributed(initialized=True)  # type: ignore[attr-defined]
    assert ours.tracer().start() is None


def test_until_the_training_uses_a_gpu_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = fake_torch(monkeypatch, FakeCuda((500,)))
    assert ours.peak_memory_mib() is None
    assert ours.gpu_model() is None
    cuda.start()
    assert ours.peak_memory_mib() == 500 + 600
    assert ours.gpu_model() == "Fake GPU 0"
    assert ours.is_used()


def test_of_several_gpus_the_fullest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, FakeCuda((500, 900))).start()
    assert ours.peak_memory_mib() == 900 + 600


def test_nothing_reserved_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, FakeCuda((0,))).start()
    assert ours.peak_memory_mib() is None


def test_every_gpu_is_capped_when_the_training_starts_to_use_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = fake_torch(monkeypatch, FakeCuda((0, 0), total_mib=16_000))
    with ours.limited_memory(4_000):
        assert cuda.fractions == {}  # capping must not start CUDA
        cuda.start()
    assert cuda.fractions == {0: 0.25, 1: 0.25}


def test_a_gpu_in_use_is_capped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = fake_torch(monkeypatch, FakeCuda(total_mib=16_000))
    cuda.start()
    with ours.limited_memory(32_000):
        assert cuda.fractions == {0: 1.0}


def test_what_starts_after_the_training_is_not_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = fake_torch(monkeypatch, FakeCuda())
    with ours.limited_memory(4_000):
        pass
    cuda.start()
    assert cuda.fractions == {}


def test_a_cap_that_fails_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeCuda):
        def get_device_properties(self, gpu: int) -> SimpleNamespace:
            raise RuntimeError("device is lost")

    cuda = fake_torch(monkeypatch, Broken())
    with ours.limited_memory(4_000):
        cuda.start()
    assert "was not capped: device is lost" in caplog.text


def test_events_of_older_versions_are_read_too() -> None:
    class Old:
        def name(self) -> str:
            return "gemm"

        def start_us(self) -> int:
            return 5

        def duration_us(self) -> int:
            return 2

        def device_type(self) -> str:
            return "DeviceType.CUDA"

        def device_index(self) -> int:
            return 1

    assert _event(Old()) == ("gemm", 5000, 7000, 1)


def take_steps(torch: Any, tracer: TorchTracer, number: int) -> tuple[Any, ...]:
    """Take steps on this thread while the tracer records from another one."""
    annotate = tracer.start()
    if annotate is None:
        pytest.skip("this version of PyTorch does not record all threads")
    matrix = torch.rand(300, 300)
    for _ in range(number):
        with annotate(Mark.STEP):
            for _ in range(10):
                matrix @ matrix
            with annotate(Mark.INPUT):
                time.sleep(0.01)  # idle time of a known length
    return tracer.stop()


@with_torch
def test_on_the_processor_the_operations_of_the_trainings_thread_are_seen(torch: Any) -> None:
    steps = take_steps(torch, TorchTracer(on_gpu=False), 4)
    assert len(steps) == 4
    for step in steps:
        assert 0 < step.active_seconds < step.wall_seconds - 0.009
        assert step.input_seconds > 0.009
        assert step.communication_seconds == 0


@with_torch
def test_a_tracer_may_be_used_again(torch: Any) -> None:
    tracer = TorchTracer(on_gpu=False)
    assert len(take_steps(torch, tracer, 3)) == 3
    assert len(take_steps(torch, tracer, 2)) == 2


@with_torch
def test_ours_does_not_start_where_the_users_profiler_runs(torch: Any) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        tracer = TorchTracer(on_gpu=False)
        assert tracer.start() is None
        assert tracer.stop() == ()
        torch.rand(50, 50) @ torch.rand(50, 50)
    assert any("mm" in event.key for event in theirs.key_averages())


@with_torch
def test_ours_gives_way_when_the_users_profiler_starts(torch: Any) -> None:
    tracer = TorchTracer(on_gpu=False)
    annotate = tracer.start()
    if annotate is None:
        pytest.skip("this version of PyTorch does not record all threads")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        torch.rand(50, 50) @ torch.rand(50, 50)
    assert tracer.stop() == ()
    assert any("mm" in event.key for event in theirs.key_averages())


@with_torch
def test_after_the_users_profiler_ours_may_start(torch: Any) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass
    assert len(take_steps(torch, TorchTracer(on_gpu=False), 2)) == 2


@with_torch
def test_nothing_of_a_trace_is_left_running(torch: Any) -> None:
    take_steps(torch, TorchTracer(on_gpu=False), 2)
    assert not [each for each in threading.enumerate() if each.name == "xonar-kineto"]


@with_torch
def test_version_is_told(torch: Any) -> None:
    assert ours.version() == f"torch {torch.__version__}"
