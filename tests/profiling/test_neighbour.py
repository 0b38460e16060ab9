"""A busy neighbour on the core must not make a training look idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

NEIGHBOUR = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", flush=True)
while os.getppid() == int(sys.argv[2]):
    pass
"""

# Computes 5 ms in every step and pauses as long as it is told; tells what it did and what was
# measured of it.
TRAINING = """
import json, os, sys, threading, time
os.sched_setaffinity(0, {int(sys.argv[1])})
pause = float(sys.argv[2])
from xonar_prefect.profiling import Window, steps
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
training = MeasuredTraining(ProcessProbe(None), Window(minimum=60, maximum=60))
found = []
thread = threading.Thread(target=lambda: found.append(training.measure()))
thread.start()
paused = 0.0
with training.attempt():
    for number in steps(range(64)):
        if number == 3:
            paused, used = 0.0, time.process_time()
        until = time.process_time() + 0.005
        while time.process_time() < until:
            pass
        if pause:
            time.sleep(pause)
            paused += pause
    used = time.process_time() - used
training.close()
thread.join()
(measurement,) = found
print(json.dumps({
    "true": used / (used + paused),
    "raw": measurement.estimate.active_fraction,
    "undisturbed": measurement.active_fraction,
    "interval": measurement.active_fraction_interval,
    "displaced": measurement.displaced,
}))
"""


@pytest.fixture
def core() -> int:
    return max(os.sched_getaffinity(0))


@pytest.fixture
def busy_neighbour(core: int) -> Iterator[None]:
    command = [sys.executable, "-c", NEIGHBOUR, str(core), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        yield
        process.kill()


def measure(core: int, pause_seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(core), str(pause_seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.usefixtures("busy_neighbour")
def test_what_a_neighbour_takes_of_a_training_that_never_waits_is_not_counted_as_idle(
    core: int,
) -> None:
    measured = measure(core, 0.0)
    assert measured["displaced"] > 0.1
    assert measured["raw"] < 0.9
    # It computed, or others did in its place. The more they take, the less certain is the share
    # that is made of the two.
    assert measured["raw"] + measured["displaced"] > 0.9
    assert measured["undisturbed"] > measured["raw"] + 0.1


@pytest.mark.usefixtures("busy_neighbour")
def test_of_a_training_that_waits_the_truth_is_within_the_interval(core: int) -> None:
    measured = measure(core, 0.005)
    low, high = measured["interval"]
    assert measured["raw"] < measured["undisturbed"] < high
    assert low < measured["true"] < high + 0.08
