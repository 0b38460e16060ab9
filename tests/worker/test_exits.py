"""The end of a process wakes the worker, also when the process is not its child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.waiting import eventually
from xonar_prefect.worker.exits import ExitWatch


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
async def watch(bell: Bell) -> ExitWatch:
    return ExitWatch(bell)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "120"])
    yield process
    process.kill()
    process.wait()


async def test_the_end_of_a_child_is_noticed_once(
    watch: ExitWatch, bell: Bell, process: subprocess.Popen[bytes]
) -> None:
    watch.watch(process.pid)
    assert bell.rung == 0
    process.kill()
    await eventually(lambda: bell.rung)
    process.wait()
    watch.close()
    assert bell.rung == 1


async def test_the_end_of_somebody_elses_child_is_noticed(watch: ExitWatch, bell: Bell) -> None:
    program = "import subprocess; p = subprocess.Popen(['sleep', '120']); print(p.pid, flush=True)"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        grandchild = int(other.stdout.readline())
    other.wait()
    watch.watch(grandchild)
    assert bell.rung == 0
    os.kill(grandchild, signal.SIGKILL)
    await eventually(lambda: bell.rung)
    watch.close()


async def test_a_process_that_has_ended_already_rings_at_once(
    watch: ExitWatch, bell: Bell, process: subprocess.Popen[bytes]
) -> None:
    process.kill()
    process.wait()
    watch.watch(process.pid)
    assert bell.rung == 1


async def test_a_closed_watch_keeps_no_file_open(
    watch: ExitWatch, process: subprocess.Popen[bytes]
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch.watch(process.pid)
    watch.watch(os.getpid())
    watch.close()
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
