"""Trees of processes that do nothing but what they are told: the tests' own has a server below."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from xonar_prefect.profiling.processes import (
    ProcessTree,
    own_peak_resident_mib,
    processor_cores,
)

WORK_SECONDS = 0.3
# Works when told to, tells how long it has worked in all, and ends when told to.
WORKER = f"""
import sys, time
print("there", flush=True)
sys.stdin.readline()
ballast = bytearray(64 * 1024 * 1024)
until = time.process_time() + {WORK_SECONDS}
while time.process_time() < until:
    pass
print(time.process_time(), flush=True)
sys.stdin.readline()
"""
# Starts one that works when told to, and stays when it has ended.
PARENT = f"""
import subprocess, sys
print("there", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {WORKER!r}])
print("ended", flush=True)
sys.stdin.read()
"""


class Talker:
    """A process that does a thing for every line, and says a line when it is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def goes_on(self) -> str:
        """Let it do the next thing, and return what it says then."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.says()

    def says(self) -> str:
        """Return the next line that it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def talking(code: str) -> Iterator[Talker]:
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        talker = Talker(process)
        assert talker.says() == "there"
        yield talker


@pytest.fixture
def worker() -> Iterator[Talker]:
    with talking(WORKER) as talker:
        yield talker


@pytest.fixture
def parent() -> Iterator[Talker]:
    with talking(PARENT) as talker:
        yield talker


def test_all_that_a_process_has_done_counts(worker: Talker) -> None:
    tree = ProcessTree(worker.pid)
    truth = float(worker.goes_on())
    assert tree.processor_seconds() == pytest.approx(truth, abs=0.01)


def test_work_of_a_child_counts_and_stays_when_it_has_ended(parent: Talker) -> None:
    assert parent.goes_on() == "there"
    tree = ProcessTree(parent.pid)
    before = tree.processor_seconds()
    parent.goes_on()
    spent = tree.processor_seconds() - before
    assert spent == pytest.approx(WORK_SECONDS, abs=0.1)
    assert parent.goes_on() == "ended"
    tree.refresh()
    assert tree.processor_seconds() - before == pytest.approx(spent, abs=0.1)


def test_memory_of_a_child_counts(parent: Talker) -> None:
    parent.goes_on()
    tree = ProcessTree(parent.pid)
    parent.goes_on()
    with_child = tree.resident_mib()
    assert parent.goes_on() == "ended"
    tree.refresh()
    assert with_child - tree.resident_mib() >= 60


def test_what_a_child_did_before_it_was_found_is_left_out(parent: Talker) -> None:
    tree = ProcessTree(parent.pid)
    before = tree.processor_seconds()
    parent.goes_on()
    parent.goes_on()
    tree.refresh()
    assert tree.processor_seconds() - before == pytest.approx(0.0, abs=0.1)


def test_a_process_that_ends_unseen_is_no_error() -> None:
    with talking(WORKER) as worker:
        tree = ProcessTree()
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert tree.processor_seconds() > 0
    assert tree.resident_mib() > 0


def test_peak_is_at_least_what_is_resident_now() -> None:
    peak = own_peak_resident_mib()
    assert peak is not None
    assert peak > 0


def test_there_is_a_core_to_run_on() -> None:
    assert processor_cores() >= 1


def test_the_account_of_the_kernel_only_grows(worker: Talker) -> None:
    tree = ProcessTree(worker.pid)
    before = tree.account()
    worker.goes_on()
    after = tree.account()
    spent = after.own_seconds - before.own_seconds
    assert spent == pytest.approx(WORK_SECONDS, abs=0.1)
    assert after.busy_seconds - before.busy_seconds >= 0.2  # it counts in hundredths
    assert after.at_s > before.at_s
    only = f"/proc/{worker.pid}/task/{worker.pid}"
    assert after.threads[only][0] - before.threads[only][0] == pytest.approx(spent, abs=0.05)
    assert after.threads[only][1] >= before.threads[only][1]


def test_the_processes_of_a_tree_are_told(parent: Talker) -> None:
    parent.goes_on()
    tree = ProcessTree()
    assert tree.pids[0] == os.getpid()
    assert parent.pid in tree.pids
    below = ProcessTree(parent.pid).pids
    assert below[0] == parent.pid
    assert len(below) == 2
    assert set(below) < set(tree.pids)


def test_a_process_finds_its_own_children_and_takes_their_exit_codes_from_nobody() -> None:
    program = """
import os, subprocess, sys
from xonar_prefect.profiling.processes import ProcessTree

tree = ProcessTree()
alone = tree.pids
child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], stdin=subprocess.PIPE)
tree.refresh()
assert tree.pids == (*alone, child.pid), tree.pids
child.stdin.close()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
tree.refresh()
assert child.wait() == 3
tree.refresh()
assert tree.pids == alone, tree.pids
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
