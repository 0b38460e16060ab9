from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import until
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling import steps
from xonar_prefect.profiling.estimate import Estimate
from xonar_prefect.profiling.marks import activated
from xonar_prefect.profiling.measurement import Measurement, Split
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe, profile_of
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory

SHORT = Window(warm_up=1, minimum=2, maximum=3)

MEASURED = Measurement(
    estimate=Estimate(
        steps=12,
        step_seconds=0.2,
        step_seconds_interval=(0.19, 0.21),
        active_fraction=0.6,
        active_fraction_interval=(0.58, 0.62),
    ),
    split=Split(active=0.2, communication=0.6, input=0.2, other=0.0),
    source="cpu-time",
    started_at_s=10.0,
    ended_at_s=12.4,
)


def a_profile(
    measurement: Measurement = MEASURED,
    *,
    joint: bool = False,
    peak_memory: tuple[int | None, str | None] = (800, "rss"),
    earlier: Profile | None = None,
) -> Profile | None:
    return profile_of(
        measurement,
        key="k",
        device_model="cpu-core",
        device="cpu-1",
        joint=joint,
        code_version="v1",
        peak_memory=peak_memory,
        earlier=earlier,
    )


def test_a_profile_says_all_that_was_measured() -> None:
    profile = a_profile()
    assert profile is not None
    assert (profile.active_fraction, profile.step_seconds) == (0.6, 0.2)
    assert profile.step_seconds_interval == (0.19, 0.21)
    assert profile.active_fraction_interval == (0.58, 0.62)
    assert (profile.peak_memory_mib, profile.memory_source) == (800, "rss")
    assert (profile.steps, profile.source, profile.measured_at_s) == (12, "cpu-time", 12.4)
    assert (profile.code_version, profile.device, profile.joint) == ("v1", "cpu-1", False)


def test_the_shares_of_a_profile_add_up_to_the_step() -> None:
    profile = a_profile()
    assert profile is not None
    assert profile.communication_fraction == pytest.approx(0.3)
    assert profile.input_fraction == pytest.approx(0.1)
    assert profile.other_fraction == pytest.approx(0.0)


def test_without_a_trace_the_shares_of_idle_time_are_unknown() -> None:
    profile = a_profile(replace(MEASURED, split=None))
    assert profile is not None
    assert profile.communication_fraction is profile.other_fraction is None
    assert profile.active_fraction == 0.6


def test_beside_a_partner_only_the_memory_is_the_trainings_own() -> None:
    profile = a_profile(joint=True)
    assert profile is not None
    assert profile.joint
    assert profile.step_seconds is profile.step_seconds_interval is None
    assert profile.active_fraction is profile.communication_fraction is None
    assert profile.peak_memory_mib == 800


def test_without_a_step_there_is_no_profile() -> None:
    assert a_profile(Measurement()) is None


def test_an_earlier_peak_is_kept_as_a_floor() -> None:
    earlier = Profile(key="k", device_model="cpu-core", peak_memory_mib=900, memory_source="nvml")
    profile = a_profile(earlier=earlier)
    assert profile is not None
    assert (profile.peak_memory_mib, profile.memory_source) == (900, "nvml")
    higher = a_profile(earlier=replace(earlier, peak_memory_mib=700))
    assert higher is not None
    assert (higher.peak_memory_mib, higher.memory_source) == (800, "rss")


def test_an_unknown_peak_stays_unknown() -> None:
    profile = a_profile(peak_memory=(None, None))
    assert profile is not None
    assert profile.peak_memory_mib is None


class Measuring:
    """A measured training with somebody who waits for its measurement."""

    def __init__(
        self, directory: Path | None = None, *, wanted: bool = True, window: Window = SHORT
    ) -> None:
        self.probe = ProcessProbe(RunDirectory(directory) if directory else None)
        self.training = MeasuredTraining(self.probe, window, wanted=wanted)
        self.found: list[Measurement] = []
        self._thread = threading.Thread(target=lambda: self.found.append(self.training.measure()))
        self._thread.start()

    def result(self) -> Measurement:
        self.training.close()
        self._thread.join(120)
        return self.found[0]


def test_an_attempt_is_measured() -> None:
    measuring = Measuring()
    with measuring.training.attempt():
        list(steps(range(10)))
    estimate = measuring.result().estimate
    assert estimate is not None
    assert estimate.steps in (2, 3)
    assert estimate.active_fraction is not None
    assert measuring.training.took_turn


def test_a_failed_attempt_without_steps_leaves_measuring_to_the_next() -> None:
    measuring = Measuring()
    with pytest.raises(ConnectionError), measuring.training.attempt():
        raise ConnectionError("data not there yet")
    with measuring.training.attempt():
        list(steps(range(10)))
    assert measuring.result().estimate is not None


def test_a_failed_attempt_with_steps_is_measured_by_what_there_was() -> None:
    def grow(number: int) -> None:
        if number == 2:
            raise MemoryError

    measuring = Measuring()
    with pytest.raises(MemoryError), measuring.training.attempt():
        list(map(grow, steps(range(10))))
    estimate = measuring.result().estimate
    assert estimate is not None
    assert estimate.steps == 1


def test_a_training_that_never_runs_measures_nothing() -> None:
    measuring = Measuring()
    assert measuring.result() == Measurement()
    assert not measuring.training.took_turn
    assert not measuring.training.gave_way


def test_while_another_training_has_the_turn_it_runs_unmeasured() -> None:
    measuring = Measuring()
    with activated(Session(SHORT, None)), measuring.training.attempt():
        list(steps(range(10)))
    assert measuring.result() == Measurement()
    assert measuring.training.gave_way


def test_a_known_training_is_counted_and_reported_but_not_measured(tmp_path: Path) -> None:
    measuring = Measuring(tmp_path, wanted=False)
    with measuring.training.attempt():
        list(steps(range(10), total=10))
    assert measuring.result() == Measurement()
    status = RunDirectory(tmp_path).read_status()
    assert status is not None
    assert (status.phase, status.steps_done, status.steps_total) == ("done", 10, 10)


def test_what_breaks_in_measuring_does_not_break_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("no keras for you")

    monkeypatch.setattr("xonar_prefect.profiling.training.watching_keras", broken)
    measuring = Measuring()
    with measuring.training.attempt():
        result = sum(steps(range(4)))
    assert result == 6
    assert "not measured" in caplog.text
    measuring.result()


def test_peak_memory_on_a_processor_is_that_of_the_process_tree() -> None:
    peak, source = MeasuredTraining(ProcessProbe(None), SHORT).peak_memory()
    assert peak is not None
    assert peak > 10
    assert source == "rss"


def test_peak_memory_on_a_gpu_is_unknown_where_no_allocator_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xonar_prefect.profiling.tensorflow.peak_memory_mib", lambda: None)
    training = MeasuredTraining(ProcessProbe(None), SHORT, on_gpu=True)
    assert training.peak_memory() == (None, None)


# Takes steps of which it computes a share, and tells what its own clocks say of them and what was
# measured. Measured steps go from beginning to beginning, as these marks do.
COMPUTING = """
import json, sys, threading, time
from xonar_prefect.profiling import Window, steps
from xonar_prefect.profiling.processes import processor_cores
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
share = float(sys.argv[1])
training = MeasuredTraining(ProcessProbe(None), Window(warm_up=1, minimum=15, maximum=15))
found = []
thread = threading.Thread(target=lambda: found.append(training.measure()))
thread.start()
marks = []
with training.attempt():
    for _ in steps(range(17)):
        marks.append((time.perf_counter(), time.process_time()))
        until = time.process_time() + share * 0.02
        while time.process_time() < until:
            pass
        time.sleep((1 - share) * 0.02)  # idle time of a known length
training.close()
thread.join()
estimate = found[0].estimate
wall, active = (marks[16][i] - marks[1][i] for i in range(2))
print(json.dumps([estimate.steps, estimate.active_fraction, active / wall / processor_cores()]))
"""


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_active_fraction_is_the_processor_time_of_the_process(share: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPUTING, str(share)], capture_output=True, text=True, check=True
    )
    number, measured, true = json.loads(done.stdout)
    assert number == 15
    # The same clock over the same steps: it holds however busy the machine is.
    assert measured == pytest.approx(true, abs=0.05)


KILLED = """
import sys, threading
from pathlib import Path
from xonar_prefect.profiling import Window, steps
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
from xonar_prefect.run_directory import RunDirectory
training = MeasuredTraining(
    ProcessProbe(RunDirectory(Path(sys.argv[1]))), Window(minimum=10**9, maximum=10**9)
)
threading.Thread(target=training.measure, daemon=True).start()
with training.attempt():
    for _ in steps(iter(int, 1)):
        pass
"""


def test_a_training_killed_while_it_is_measured_leaves_a_report(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)

    def is_profiling() -> bool:
        status = directory.read_status()
        return status is not None and status.phase == "profiling" and status.steps_done > 0

    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
        try:
            until(is_profiling)
        finally:
            process.kill()
    assert is_profiling()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == ["status.json"]
