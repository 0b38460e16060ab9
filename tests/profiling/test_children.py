"""Trainings whose steps are taken by other processes: started, spawned, forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.profiling.measuring import measure
from xonar_prefect.profiling import step, steps
from xonar_prefect.profiling.injection import REPORTS_VARIABLE
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory

_SAYS_IT_HAS_THREADS = (
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # Python, from 3.12 on
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # JAX, once it was imported
)

STEPS = """
import time
from xonar_prefect import steps
for _ in steps(range(40)):
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        pass
"""

# Takes steps in which it only waits, and tells how much of a core another process had meanwhile.
CHIEF = """
import sys, time
from xonar_prefect import steps
from xonar_prefect.profiling.processes import _processor_clock
clock = _processor_clock(int(sys.argv[1]))
began, used = time.perf_counter(), time.clock_gettime(clock)
for _ in steps(range(30)):
    time.sleep(0.02)
print((time.clock_gettime(clock) - used) / (time.perf_counter() - began))
"""


def forking(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test fork this process, although it has threads."""
    for mark in _SAYS_IT_HAS_THREADS:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def nobody_above_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORTS_VARIABLE, raising=False)


def take_steps() -> None:
    exec(STEPS, {})  # noqa: S102


def in_processes(method: str, number: int = 2) -> None:
    processes = [
        multiprocessing.get_context(method).Process(target=take_steps) for _ in range(number)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def measured_of_children(measurement: Measurement) -> None:
    assert measurement.estimate is not None
    assert measurement.estimate.steps >= 10
    assert measurement.estimate.step_seconds >= 0.004
    assert measurement.source == "cpu-time"
    assert measurement.active_fraction is not None
    assert measurement.started_at_s is not None


def test_steps_of_a_command_that_the_training_runs_are_measured() -> None:
    before = dict(os.environ)
    train = [sys.executable, "-c", STEPS]
    measured_of_children(measure(lambda: subprocess.run(train, check=True), Window()))
    assert dict(os.environ) == before


@forking
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_steps_of_workers_are_measured(method: str) -> None:
    measured_of_children(measure(lambda: in_processes(method), Window()))


def test_own_steps_win() -> None:
    slow = "import time, xonar_prefect\nfor _ in xonar_prefect.steps(range(16)): time.sleep(0.05)"

    def train() -> None:
        child = subprocess.Popen([sys.executable, "-c", slow])
        for _ in steps(range(60)):
            pass
        assert child.wait() == 0

    estimate = measure(train, Window()).estimate
    assert estimate is not None
    assert estimate.step_seconds < 0.05


def test_the_time_of_processes_without_steps_counts() -> None:
    """As of parameter servers, which work while the chief waits."""
    busy = "import time\nprint(flush=True)\nwhile time.process_time() < 600: pass"
    given: list[float] = []

    def train() -> None:
        with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            chief = [sys.executable, "-c", CHIEF, str(server.pid)]
            done = subprocess.run(chief, check=True, stdout=subprocess.PIPE)
            server.kill()
        given.append(float(done.stdout))

    measurement = measure(train, Window())
    assert measurement.estimate is not None
    assert measurement.estimate.active_fraction is not None
    # The server would use a core, but it has only what others on this machine leave it.
    assert measurement.estimate.active_fraction > 0.3 * given[0] / len(os.sched_getaffinity(0))


@forking
def test_a_child_forked_within_a_step_waits_for_no_lock_of_a_thread_it_has_not() -> None:
    probe = ProcessProbe(None)
    training = MeasuredTraining(probe, Window())
    held, forked = threading.Event(), threading.Event()

    def look_for_children() -> None:
        with probe.tree._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=look_for_children)
    with training.attempt():
        list(steps(range(4)))
        with step():
            thread.start()
            held.wait()
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)  # ends a child that waits
            else:
                forked.set()
        if pid == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    training.close()
    thread.join()
    assert training.measure().estimate is not None


@pytest.mark.parametrize("wanted", [True, False])
def test_steps_of_a_worker_are_the_progress_of_the_training(
    tmp_path: Path, *, wanted: bool
) -> None:
    directory = RunDirectory(tmp_path)
    training = MeasuredTraining(ProcessProbe(directory), Window(), wanted=wanted)
    with training.attempt():
        in_processes("spawn", number=1)
    training.close()
    assert (training.measure().estimate is not None) == wanted
    status = directory.read_status()
    assert status is not None
    assert (status.phase, status.steps_done, status.steps_total) == ("done", 40, 40)
    assert status.stepping_seconds >= 40 * 0.004
    assert status.last_step_at_s is not None


TORCH = """
class cuda:
    is_initialized = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    class get_device_properties:
        total_memory = 16_000 * 1024 * 1024
        def __init__(self, gpu):
            pass
    def _lazy_call(call):
        call()
    def set_per_process_memory_fraction(fraction, gpu):
        print(f"GPU {gpu}: {fraction}")
"""


def test_a_cap_holds_in_the_processes_that_a_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    training = MeasuredTraining(
        ProcessProbe(None), Window(), on_gpu=True, wanted=False, memory_limit_mib=4_000
    )
    with training.attempt():
        train = [sys.executable, "-c", "import torch"]
        said = subprocess.run(train, check=True, stdout=subprocess.PIPE, text=True).stdout
    training.close()
    assert said == "GPU 0: 0.25\n"
