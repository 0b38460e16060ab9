"""JAX's memory with stand-ins, since no GPU is needed here, and its real profiler where it is."""

from __future__ import annotations

import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from xonar_prefect.profiling import jax as ours
from xonar_prefect.profiling.recording import Mark


def with_jax(test: Any) -> Any:
    """Mark a test that needs the real JAX."""
    missing = find_spec("jax") is None
    return pytest.mark.jax(pytest.mark.skipif(missing, reason="JAX is not installed")(test))


def fake_jax(monkeypatch: pytest.MonkeyPatch, *devices: Any, started: bool = True) -> None:
    module = ModuleType("jax")
    module.__dict__.update(local_devices=lambda: list(devices), __version__="0-fake")
    monkeypatch.setitem(sys.modules, "jax", module)
    bridge = ModuleType("jax._src.xla_bridge")
    bridge.__dict__["_backends"] = {"gpu": object()} if started else {}
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)


def gpu(peak_mib: int | None) -> SimpleNamespace:
    stats = None if peak_mib is None else {"peak_bytes_in_use": peak_mib * 1024 * 1024}
    return SimpleNamespace(platform="gpu", device_kind="Fake GPU", memory_stats=lambda: stats)


def test_the_fullest_gpu_counts_with_the_context_added(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, gpu(300), gpu(1000))
    assert ours.peak_memory_mib() == 1600
    assert ours.gpu_model() == "Fake GPU"


def test_a_device_that_tells_no_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, gpu(None))
    assert ours.peak_memory_mib() is None


def test_on_the_processor_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, SimpleNamespace(platform="cpu", device_kind="cpu"))
    assert ours.gpu_model() is None
    assert ours.peak_memory_mib() is None


def test_until_the_training_uses_jax_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, gpu(300), started=False)
    assert not ours.is_used()
    assert ours.peak_memory_mib() is None
    assert ours.tracer().start() is None


def test_a_jax_without_options_is_traced_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    fake_jax(monkeypatch)
    profiler = SimpleNamespace(start_trace=started.append, stop_trace=started.clear)
    monkeypatch.setattr(sys.modules["jax"], "profiler", profiler, raising=False)
    tracer = ours.tracer()
    assert tracer.start() is not None
    assert len(started) == 1
    assert tracer.stop() == ()
    assert started == []


@pytest.fixture(scope="module")
def jax() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jax
    jax.numpy.ones(2).block_until_ready()
    return jax


@with_jax
def test_marked_steps_are_read_from_its_trace(jax: Any) -> None:
    multiply = jax.jit(lambda matrix: matrix @ matrix)
    matrix = jax.numpy.ones((200, 200))
    multiply(matrix).block_until_ready()
    tracer = ours.tracer()
    annotate = tracer.start()
    assert annotate is not None
    for _ in range(3):
        with annotate(Mark.STEP):
            multiply(matrix).block_until_ready()
            with annotate(Mark.INPUT):
                time.sleep(0.02)  # a slow source of data
    steps = tracer.stop()
    assert len(steps) == 3
    assert all(step.input_seconds > 0.019 for step in steps)


@with_jax
def test_what_python_calls_is_not_traced(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def called_within_a_step() -> None:
        jax.numpy.ones(2).block_until_ready()

    def read(directory: Path) -> tuple[()]:
        traces.extend(each.read_bytes() for each in directory.rglob("*.xplane.pb"))
        return ()

    traces: list[bytes] = []
    monkeypatch.setattr("xonar_prefect.profiling.xplane.read_directory", read)
    tracer = ours.tracer()
    annotate = tracer.start()
    assert annotate is not None
    with annotate(Mark.STEP):
        called_within_a_step()
    tracer.stop()
    assert Mark.STEP.value.encode() in traces[0]
    assert b"called_within_a_step" not in traces[0]


@with_jax
def test_ours_does_not_start_where_the_users_profiler_runs(jax: Any, tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        assert ours.tracer().start() is None
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


@with_jax
def test_ours_gives_way_when_the_users_profiler_starts(jax: Any, tmp_path: Path) -> None:
    tracer = ours.tracer()
    assert tracer.start() is not None
    with jax.profiler.trace(str(tmp_path)):
        pass
    assert tracer.stop() == ()
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
