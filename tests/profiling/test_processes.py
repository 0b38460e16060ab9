from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from xonar_prefect.profiling.processes import (
    ProcessTree,
    own_peak_resident_mib,
    processor_cores,
)

# Works for a while, tells so, and waits to be ended.
CHILD = """
import sys, time
ballast = bytearray(64 * 1024 * 1024)
while time.process_time() < 0.3:
    pass
print("worked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def wait_until_it_worked(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "worked\n"


def test_own_work_counts() -> None:
    tree = ProcessTree()
    before, truth_before = tree.processor_seconds(), time.process_time()
    while time.process_time() < truth_before + 0.05:
        pass
    spent, truth = tree.processor_seconds() - before, time.process_time() - truth_before
    assert spent == pytest.approx(truth, abs=0.01)


def test_work_of_a_child_counts_and_stays_when_it_has_ended(
    child: subprocess.Popen[str],
) -> None:
    tree = ProcessTree()
    own_before = time.process_time()
    before = tree.processor_seconds()
    wait_until_it_worked(child)
    tree.refresh()
    spent = tree.processor_seconds() - before - (time.process_time() - own_before)
    assert spent > 0.2
    child.communicate()
    tree.refresh()
    own = time.process_time() - own_before
    assert tree.processor_seconds() - before - own == pytest.approx(spent, abs=0.2)


def test_memory_of_a_child_counts(child: subprocess.Popen[str]) -> None:
    tree = ProcessTree()
    wait_until_it_worked(child)
    tree.refresh()
    with_child = tree.resident_mib()
    child.communicate()
    tree.refresh()
    assert with_child - tree.resident_mib() >= 60


def test_a_process_that_ends_unseen_is_no_error(child: subprocess.Popen[str]) -> None:
    tree = ProcessTree()
    child.kill()
    child.wait()
    assert tree.processor_seconds() > 0
    assert tree.resident_mib() > 0


def test_peak_is_at_least_what_is_resident_now() -> None:
    peak = own_peak_resident_mib()
    assert peak is not None
    assert peak > 0


def test_there_is_a_core_to_run_on() -> None:
    assert processor_cores() >= 1


def test_the_account_of_the_kernel_only_grows() -> None:
    tree = ProcessTree()
    before = tree.account()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = tree.account()
    assert after.own_seconds - before.own_seconds == pytest.approx(0.1, abs=0.05)
    assert after.busy_seconds - before.busy_seconds >= 0.05  # it counts in hundredths
    assert after.at_s > before.at_s
    own = f"/proc/{os.getpid()}/task/{os.getpid()}"
    assert after.threads[own][0] - before.threads[own][0] == pytest.approx(0.1, abs=0.05)
    assert after.threads[own][1] >= before.threads[own][1]


def test_the_processes_of_a_tree_are_told(child: subprocess.Popen[str]) -> None:
    tree = ProcessTree()
    tree.refresh()
    assert tree.pids[0] == os.getpid()
    assert child.pid in tree.pids
    assert ProcessTree(child.pid).pids == (child.pid,)


def test_what_a_child_did_before_it_was_found_is_left_out() -> None:
    tree = ProcessTree()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until_it_worked(process)  # for 0.3 s
        own_before, before = time.process_time(), tree.processor_seconds()
        tree.refresh()
        spent = tree.processor_seconds() - before - (time.process_time() - own_before)
        assert spent == pytest.approx(0.0, abs=0.05)
        process.communicate()
