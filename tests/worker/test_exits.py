"""The end of a process wakes the worker, also when the process is not its child."""

from __future__ import annotations

import contextlib
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
    process = subprocess.Popen(["sleep", "600"])
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
    program = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True)"
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


def process_descriptors() -> int:
    """Count the open files that stand for processes: threads of Prefect's open and close others."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "pidfd" in str(path.readlink())
    return found


async def test_a_closed_watch_keeps_no_file_open(
    watch: ExitWatch, process: subprocess.Popen[bytes]
) -> None:
    before = process_descriptors()
    watch.watch(process.pid)
    watch.watch(os.getpid())
    assert process_descriptors() == before + 2
    watch.close()
    watch.close()
    assert process_descriptors() == before
