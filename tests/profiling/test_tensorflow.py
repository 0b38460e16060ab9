"""Traces of the real TensorFlow; its memory with stand-ins, since no GPU is needed here."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from xonar_prefect.core.out_of_memory import is_out_of_memory
from xonar_prefect.profiling import tensorflow as ours
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window


def with_tensorflow(test: Any) -> Any:
    """Mark a test that needs the real TensorFlow."""
    missing = find_spec("tensorflow") is None
    return pytest.mark.tensorflow(
        pytest.mark.skipif(missing, reason="TensorFlow is not installed")(test)
    )


@pytest.fixture(scope="module")
def tf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    return tensorflow


def take_steps(session: Session, tf: Any, number: int) -> None:
    matrix = tf.random.normal((400, 400))
    multiply = tf.function(lambda: tf.reduce_sum(matrix @ matrix))
    multiply()
    for _ in range(number):
        session.begin_step()
        multiply()
        time.sleep(0.01)  # idle time of a known length, not a wait for anything
        session.end_step()


def counting_session() -> Session:
    return Session(Window(), None, measure=False)


@with_tensorflow
def test_a_trace_tells_active_and_idle_time_of_each_marked_step(tf: Any) -> None:
    session, tracer = counting_session(), ours.Tracer()
    annotate = tracer.start()
    assert annotate is not None
    done = session.trace(4, annotate)
    take_steps(session, tf, 6)
    assert done.is_set()
    steps = tracer.stop()
    assert len(steps) == 4
    for step in steps:
        assert 0 < step.active_seconds < step.wall_seconds - 0.009
        assert step.communication_seconds == 0


@with_tensorflow
def test_waiting_between_steps_is_seen_as_waiting_for_input(tf: Any) -> None:
    session, tracer = counting_session(), ours.Tracer()
    annotate = tracer.start()
    assert annotate is not None
    session.trace(3, annotate)
    for _ in range(4):
        take_steps(session, tf, 1)
        time.sleep(0.02)  # a slow source of data
    session.finish()
    steps = tracer.stop()
    assert len(steps) == 3
    assert all(step.input_seconds > 0.019 for step in steps)


@with_tensorflow
def test_a_slow_data_set_is_seen_as_waiting_for_input(tf: Any) -> None:
    def slow() -> Iterator[float]:
        for number in range(5):
            time.sleep(0.02)  # a slow source of data
            yield float(number)

    data = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec((), tf.float32))
    session, tracer = counting_session(), ours.Tracer()
    annotate = tracer.start()
    assert annotate is not None
    session.trace(5, annotate)
    iterator = iter(data)
    next_batch = tf.function(lambda: next(iterator))
    for _ in range(5):
        session.begin_step()
        next_batch()
        session.end_step()
    session.finish()
    steps = tracer.stop()
    assert sum(step.input_seconds for step in steps[1:]) > 0.06


@with_tensorflow
def test_ours_does_not_start_where_the_users_profiler_runs(tf: Any, tmp_path: Path) -> None:
    tf.profiler.experimental.start(str(tmp_path))
    tracer = ours.Tracer()
    assert tracer.start() is None
    assert tracer.stop() == ()
    tf.profiler.experimental.stop()
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


@with_tensorflow
@pytest.mark.parametrize("through", ["function", "context manager"])
def test_ours_gives_way_when_the_users_profiler_starts(
    tf: Any, tmp_path: Path, through: str
) -> None:
    tracer = ours.Tracer()
    assert tracer.start() is not None
    if through == "function":
        tf.profiler.experimental.start(str(tmp_path))
        tf.profiler.experimental.stop()
    else:
        with tf.profiler.experimental.Profile(str(tmp_path)):
            pass
    assert tracer.stop() == ()
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


@with_tensorflow
def test_a_trace_leaves_the_profiler_as_it_was_found(tf: Any) -> None:
    before = tf.profiler.experimental.start
    tracer = ours.Tracer()
    assert tracer.start() is not None
    tracer.stop()
    assert tf.profiler.experimental.start is before


@with_tensorflow
def test_zero_from_the_allocator_means_unknown(tf: Any) -> None:
    assert ours.peak_memory_mib() is None


@with_tensorflow
def test_version_is_told(tf: Any) -> None:
    assert ours.version() == f"tensorflow {tf.__version__}"


def fake_tensorflow(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> Any:
    module = ModuleType("tensorflow")
    module.__dict__.update(parts)
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    return module


def test_without_tensorflow_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert ours.version() is None
    assert ours.peak_memory_mib() is None
    assert ours.Tracer().start() is None


def test_the_allocators_peak_is_brought_to_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = {"current": 0, "peak": 1000 * 1024 * 1024}
    fake_tensorflow(
        monkeypatch,
        config=SimpleNamespace(experimental=SimpleNamespace(get_memory_info=lambda _: memory)),
    )
    assert ours.peak_memory_mib() == 1750


class FakeConfig:
    """Keeps the promises of `tf.config` about capped devices."""

    def __init__(self, gpus: list[str], *, in_use: bool = False) -> None:
        self._gpus = gpus
        self._in_use = in_use
        self.limits: dict[str, int] = {}
        self.experimental = SimpleNamespace(set_memory_growth=self._set_memory_growth)

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self._gpus

    @staticmethod
    def LogicalDeviceConfiguration(memory_limit: int) -> int:  # noqa: N802
        return memory_limit

    def set_logical_device_configuration(self, gpu: str, limits: list[int]) -> None:
        if self._in_use:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        (self.limits[gpu],) = limits

    def _set_memory_growth(self, gpu: str, enable: bool) -> None:
        if gpu in self.limits:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")


def test_every_gpu_is_capped_and_asking_for_growth_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = FakeConfig(["GPU:0", "GPU:1"])
    fake_tensorflow(monkeypatch, config=config)
    with ours.limited_memory(4000):
        assert config.limits == {"GPU:0": 4000, "GPU:1": 4000}
        config.experimental.set_memory_growth("GPU:0", True)


def test_without_a_gpu_nothing_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FakeConfig([])
    fake_tensorflow(monkeypatch, config=config)
    with ours.limited_memory(4000):
        assert config.limits == {}


def test_a_gpu_in_use_cannot_be_capped_and_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_tensorflow(monkeypatch, config=FakeConfig(["GPU:0"], in_use=True))
    with ours.limited_memory(4000):
        pass
    assert "memory was not capped" in caplog.text


@with_tensorflow
def test_out_of_memory_of_tensorflow_is_recognised(tf: Any) -> None:
    ran_out = tf.errors.ResourceExhaustedError(
        None, None, "OOM when allocating tensor with shape[8192,8192] and type float on /device:GPU"
    )
    full_disk = tf.errors.ResourceExhaustedError(None, None, "/ckpt; No space left on device")
    assert is_out_of_memory(ran_out)
    assert not is_out_of_memory(full_disk)
