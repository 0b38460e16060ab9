"""What can go wrong in a training or beside it: it is never harmed, and what is missing is said."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.profiling.measuring import measure
from xonar_prefect.profiling import frameworks, steps
from xonar_prefect.profiling.file_tracer import FileTracer
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.recording import Mark
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe, profile_of
from xonar_prefect.profiling.window import Window

WINDOW = Window(warm_up=1, minimum=3, maximum=6)


def test_no_steps_at_all_give_no_profile() -> None:
    assert measure(lambda: None, WINDOW) == Measurement()


def test_one_step_gives_no_profile_beyond_the_warm_up() -> None:
    assert measure(lambda: list(steps(range(1))), WINDOW) == Measurement()


def test_one_step_after_the_warm_up_has_no_interval() -> None:
    estimate = measure(lambda: list(steps(range(2))), WINDOW).estimate
    assert estimate is not None
    assert estimate.steps == 1
    assert estimate.step_seconds_interval is estimate.active_fraction_interval is None


def test_steps_of_a_millisecond_are_measured() -> None:
    def train() -> None:
        for _ in steps(range(200)):
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass

    estimate = measure(train, Window()).estimate
    assert estimate is not None
    assert estimate.step_seconds >= 0.001


def test_a_step_that_raises_leaves_those_before_it() -> None:
    def train() -> None:
        for number in steps(range(10)):
            if number == 3:
                raise ArithmeticError("loss is not finite")

    with pytest.raises(ArithmeticError):
        measure(train, WINDOW)


class BrokenTracer(FileTracer):
    """A profiler that writes what it is told to, and nothing else."""

    source = "broken"

    def __init__(self, written: bytes | None, error: Exception | None = None) -> None:
        super().__init__()
        self._written = written
        self._error = error

    def _is_there(self) -> bool:
        return True

    def _begin(self, directory: Path) -> None:
        if self._error is not None:
            raise self._error
        if self._written is not None:
            target = directory / "plugins" / "profile" / "now"
            target.mkdir(parents=True)
            (target / "host.xplane.pb").write_bytes(self._written)

    def _finish(self, *, save: bool) -> None:
        pass

    @contextmanager
    def _mark(self, mark: Mark) -> Iterator[None]:
        yield

    def _starters(self) -> list[tuple[Any, str]]:
        return []


@pytest.mark.parametrize(
    "tracer",
    [
        BrokenTracer(None),
        BrokenTracer(b""),
        BrokenTracer(b"\x0a\xff\xff\x01cut off"),
        BrokenTracer(None, OSError(errno.ENOSPC, "No space left on device")),
        BrokenTracer(None, RuntimeError("another profiler is running")),
    ],
    ids=["no file", "empty", "cut off", "full disk", "the user's profiler"],
)
def test_a_trace_that_cannot_be_had_costs_the_split_and_nothing_else(
    tracer: BrokenTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "tracer", lambda: tracer)
    measurement = measure(lambda: list(steps(range(400))), WINDOW)
    assert measurement.estimate is not None
    profile = profile_of(
        measurement,
        key="k",
        device_model="cpu",
        device=None,
        joint=False,
        code_version=None,
        peak_memory=(1, "rss"),
    )
    assert profile is not None
    assert profile.active_fraction is not None
    assert profile.communication_fraction is None


def test_where_temporary_files_cannot_be_written_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_args: object, **_kwargs: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    tracer = BrokenTracer(b"")
    assert tracer.start() is None
    assert tracer.stop() == ()


def active_seconds(measurement: Measurement) -> float:
    assert measurement.estimate is not None
    assert measurement.estimate.active_fraction is not None
    return measurement.estimate.active_fraction * measurement.estimate.step_seconds


def step_seconds(measurement: Measurement) -> float:
    assert measurement.estimate is not None
    return measurement.estimate.step_seconds


def test_a_training_that_changes_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xonar_prefect.profiling.training._LEAST_BLOCK_SECONDS", 0.01)
    # Whoever else is busy on this machine: then it would not be told.
    monkeypatch.setattr(Measurement, "is_undisturbed", property(lambda _: True))
    training = MeasuredTraining(ProcessProbe(None), WINDOW)
    first: list[Measurement] = []
    later: list[Measurement] = []
    noticed = threading.Event()

    def watch() -> None:
        first.append(training.measure())
        for measurement in training.changes():
            later.append(measurement)
            noticed.set()

    thread = threading.Thread(target=watch)
    thread.start()
    with training.attempt():
        for _ in steps(range(20_000)):
            # Another batch size, longer than all that others took of the first steps.
            seconds = max(0.02, 4 * step_seconds(first[0])) if first else 0.001
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            if noticed.is_set():
                break
    training.close()
    thread.join(120)
    assert active_seconds(later[0]) > 2 * active_seconds(first[0])


def test_what_changed_while_others_had_the_cores_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xonar_prefect.profiling.training._LEAST_BLOCK_SECONDS", 0.01)
    training = MeasuredTraining(ProcessProbe(None), WINDOW)
    asked = threading.Event()

    def disturbed(_: Measurement) -> bool:
        asked.set()
        return False

    monkeypatch.setattr(Measurement, "is_undisturbed", property(disturbed))
    first: list[Measurement] = []
    later: list[Measurement] = []

    def watch() -> None:
        first.append(training.measure())
        later.extend(training.changes())

    thread = threading.Thread(target=watch)
    thread.start()
    with training.attempt():
        for _ in steps(range(20_000)):
            time.sleep(max(0.02, 4 * step_seconds(first[0])) if first else 0.001)
            if asked.is_set():
                break
    training.close()
    thread.join(120)
    assert asked.is_set()
    assert later == []
