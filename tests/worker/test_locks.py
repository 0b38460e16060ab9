"""Locks between workers, one of which is another process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.disks import fill
from xonar_prefect.errors import DevicesTakenError, SettingsError, WorkerNameTakenError
from xonar_prefect.worker.locks import Locks

Hold = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Locks]:
    locks = Locks(tmp_path)
    yield locks
    locks.close()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Run a program with `locks` of another process; returns when it has taken them."""
    started = []

    def hold(taking: str) -> subprocess.Popen[str]:
        program = f"""
import sys, time
from pathlib import Path
from xonar_prefect.worker.locks import Locks
locks = Locks(Path(sys.argv[1]))
{taking}
print("taken", flush=True)
time.sleep(120)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_name_is_taken_once_per_pool(locks: Locks, hold: Hold) -> None:
    hold("locks.take_name('gpus', 'one')")
    with pytest.raises(WorkerNameTakenError, match="'one'"):
        locks.take_name("gpus", "one")
    locks.take_name("gpus", "two")
    locks.take_name("other", "one")


def test_a_worker_takes_the_devices_that_are_left(locks: Locks, hold: Hold) -> None:
    hold("locks.take_devices(['cpu-0', 'cpu-7'], owner='other')")
    assert locks.take_devices(["cpu-0", "cpu-1"], owner="me") == {"cpu-1"}


def test_a_worker_without_a_device_left_is_told_so(locks: Locks, hold: Hold) -> None:
    hold("locks.take_devices(['cpu-0', 'cpu-1'], owner='other')")
    with pytest.raises(DevicesTakenError, match="All 2 devices of this host are used by other"):
        locks.take_devices(["cpu-0", "cpu-1"], owner="me")


def test_a_device_stays_taken_as_long_as_a_training_runs_there(
    locks: Locks, tmp_path: Path
) -> None:
    worker = Locks(tmp_path)
    worker.take_devices(["cpu-0"], owner="gone")
    training = subprocess.Popen(["sleep", "120"], pass_fds=worker.descriptors(["cpu-0"]))
    worker.close()
    with pytest.raises(DevicesTakenError, match="gone"):
        locks.take_devices(["cpu-0"], owner="me")
    adopting = Locks(tmp_path)
    assert adopting.take_devices(["cpu-0"], owner="gone") == {"cpu-0"}
    assert adopting.descriptors(["cpu-0"]) == ()
    training.kill()
    training.wait()
    adopting.take_back()
    assert len(adopting.descriptors(["cpu-0"])) == 1
    with pytest.raises(DevicesTakenError):
        locks.take_devices(["cpu-0"], owner="me")
    adopting.close()


def test_no_device_at_all_is_nobodys_fault(locks: Locks) -> None:
    assert locks.take_devices([], owner="me") == frozenset()


def test_the_death_of_a_worker_gives_its_locks_back(locks: Locks, hold: Hold) -> None:
    other = hold("locks.take_name('gpus', 'one'); locks.take_devices(['cpu-0'], owner='one')")
    other.send_signal(signal.SIGKILL)
    other.wait()
    locks.take_name("gpus", "one")
    assert locks.take_devices(["cpu-0"], owner="one") == {"cpu-0"}


def test_closed_locks_are_free_and_may_be_closed_again(locks: Locks, tmp_path: Path) -> None:
    locks.take_name("gpus", "one")
    locks.close()
    locks.close()
    other = Locks(tmp_path)
    other.take_name("gpus", "one")
    other.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"file/locks cannot be used \(Not a directory\); set "):
        Locks(tmp_path / "file" / "locks").take_name("gpus", "one")


def test_what_a_dead_worker_started_does_not_keep_its_locks(locks: Locks, hold: Hold) -> None:
    other = hold(
        "locks.take_name('gpus', 'one')\n"
        "import subprocess\n"
        "subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)"
    )
    (child,) = psutil.Process(other.pid).children()
    other.kill()
    other.wait()
    locks.take_name("gpus", "one")
    child.kill()


def test_a_full_disk_is_named_as_what_is_wrong(small_disk: Path) -> None:
    fill(small_disk)
    locks = Locks(small_disk / "locks")
    with pytest.raises(SettingsError, match=r"locks cannot be used \(No space left on device\)"):
        locks.take_name("gpus", "one")
    locks.close()
