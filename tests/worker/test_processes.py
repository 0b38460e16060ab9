"""Process trees, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.waiting import eventually
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE
from xonar_prefect.worker import processes
from xonar_prefect.worker.processes import ProcessTrees, lives, send_signal, started_ticks

# Prints the id of a process of its own and stays.
STAY = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

Start = Callable[..., int]


def environment(marker: Path | None) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k != RUN_DIRECTORY_VARIABLE}
    return clean if marker is None else {**clean, RUN_DIRECTORY_VARIABLE: str(marker)}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a marked program; returns the process id that it prints."""
    started: list[subprocess.Popen[str]] = []
    printed: list[int] = []

    def start(program: str, marker: Path | None = tmp_path) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=environment(marker),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        printed.append(int(process.stdout.readline()))
        return printed[-1]

    yield start
    send_signal(printed, signal.SIGKILL)
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_process_is_found_by_its_marker(start: Start, tmp_path: Path) -> None:
    pid = start(STAY)
    assert ProcessTrees().scan()[str(tmp_path)] == [pid]


def test_unmarked_processes_belong_to_nobody(start: Start) -> None:
    pid = start(STAY, marker=None)
    assert all(pid not in pids for pids in ProcessTrees().scan().values())


def test_trees_of_two_run_directories_are_told_apart(start: Start, tmp_path: Path) -> None:
    first, second = start(STAY, tmp_path / "a"), start(STAY, tmp_path / "b")
    trees = ProcessTrees().scan()
    assert (trees[str(tmp_path / "a")], trees[str(tmp_path / "b")]) == ([first], [second])


async def test_a_process_is_found_across_sessions_and_a_double_fork(
    start: Start, tmp_path: Path
) -> None:
    daemon = start(
        f"""
        import os
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        {STAY}
        """
    )
    # Those that forked it may not have ended yet.
    await eventually(lambda: ProcessTrees().scan()[str(tmp_path)] == [daemon])


def test_a_child_that_cleared_its_environment_is_found_as_a_descendant(
    start: Start, tmp_path: Path
) -> None:
    child = start(
        f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-c", {STAY!r}], env={{}})
        """
    )
    found = ProcessTrees().scan()[str(tmp_path)]
    assert child in found
    assert len(found) == 2


async def test_a_child_with_a_cleared_environment_is_still_known_when_its_parent_is_gone(
    start: Start, tmp_path: Path
) -> None:
    child = start(
        f"""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", {STAY!r}], env={{}})
        time.sleep(600)
        """
    )
    trees = ProcessTrees()
    (parent,) = set(trees.scan()[str(tmp_path)]) - {child}
    os.kill(parent, signal.SIGKILL)
    await eventually(lambda: started_ticks(parent) is None)
    assert trees.scan()[str(tmp_path)] == [child]


async def test_a_process_seen_before_it_became_the_training_is_found_afterwards(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pid = start(
        f"""
        import os, sys
        print(os.getpid(), flush=True)
        open({str(gate)!r}).close()
        os.execve(
            sys.executable,
            [sys.executable, "-c", "import time; time.sleep(600)"],
            {{{RUN_DIRECTORY_VARIABLE!r}: {str(tmp_path)!r}}},
        )
        """,
        marker=None,
    )
    trees = ProcessTrees()
    assert str(tmp_path) not in trees.scan()
    gate.open("w").close()
    assert await eventually(lambda: trees.scan().get(str(tmp_path))) == [pid]


async def test_zombies_are_gone(start: Start, tmp_path: Path) -> None:
    pid = start(STAY)
    os.kill(pid, signal.SIGKILL)  # its parent, this test, has not waited for it yet
    await eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] == "Z")
    assert str(tmp_path) not in ProcessTrees().scan()
    assert started_ticks(pid) is None


def test_a_process_has_one_start_time_for_life() -> None:
    assert started_ticks(os.getpid()) == started_ticks(os.getpid()) is not None
    assert started_ticks(2**22 + 1) is None  # above the kernel's highest process id


def test_whoever_had_no_start_time_when_it_was_looked_for_is_gone() -> None:
    assert lives(os.getpid(), started_ticks(os.getpid()), processes.boot_id())
    process = subprocess.Popen(["true"])
    process.wait()
    assert started_ticks(process.pid) is None
    assert not lives(process.pid, None, processes.boot_id())


def test_this_boot_has_an_id() -> None:
    assert processes.boot_id() == processes.boot_id() != ""


def test_a_signal_reaches_the_living_and_the_gone_do_not_matter(
    start: Start, tmp_path: Path
) -> None:
    pid = start(STAY)
    send_signal([2**22 + 1, pid], signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
