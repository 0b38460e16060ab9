"""Locks between workers, one of which is another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.disks import fill
from xonar_prefect.errors import DevicesTakenError, SettingsError, WorkerNameTakenError
from xonar_prefect.worker.locks import Locks, default_lock_directory

Hold = Callable[[str], "subprocess.Popen[str]"]
Launch = Callable[..., "subprocess.Popen[bytes]"]


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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from xonar_prefect.worker.locks import Locks, default_lock_directory
locks = Locks(Path(sys.argv[1]))
{taking}
print("taken", flush=True)
time.sleep(600)
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


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a training that holds devices of a worker."""
    started = []

    def launch(worker: Locks, *devices: str) -> subprocess.Popen[bytes]:
        with worker.lent(devices) as descriptors:
            started.append(subprocess.Popen(["sleep", "600"], pass_fds=descriptors))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


def test_a_device_stays_taken_as_long_as_a_training_runs_there(
    locks: Locks, tmp_path: Path, launch: Launch
) -> None:
    worker = Locks(tmp_path)
    worker.take_devices(["cpu-0", "cpu-1"], owner="gone")
    training = launch(worker, "cpu-0", "cpu-1")
    worker.close()
    with pytest.raises(DevicesTakenError, match="gone"):
        locks.take_devices(["cpu-0", "cpu-1"], owner="me")
    training.kill()
    training.wait()
    assert locks.take_devices(["cpu-0", "cpu-1"], owner="me") == {"cpu-0", "cpu-1"}


def test_a_worker_that_returns_has_its_devices_and_new_trainings_keep_them_too(
    locks: Locks, tmp_path: Path, launch: Launch
) -> None:
    earlier = Locks(tmp_path)
    earlier.take_devices(["cpu-0"], owner="one")
    first = launch(earlier, "cpu-0")
    earlier.close()
    later = Locks(tmp_path)
    assert later.take_devices(["cpu-0"], owner="one") == {"cpu-0"}
    second = launch(later, "cpu-0")
    later.close()
    for training in (first, second):
        with pytest.raises(DevicesTakenError, match="one"):
            locks.take_devices(["cpu-0"], owner="me")
        training.kill()
        training.wait()
    assert locks.take_devices(["cpu-0"], owner="me") == {"cpu-0"}


def test_devices_may_be_taken_one_after_the_other_and_again(locks: Locks) -> None:
    assert locks.take_devices(["cpu-0"], owner="me") == {"cpu-0"}
    assert locks.take_devices(["cpu-1"], owner="me") == {"cpu-1"}
    assert locks.take_devices(["cpu-0"], owner="me") == {"cpu-0"}


def test_having_no_device_may_be_no_error(locks: Locks, hold: Hold) -> None:
    hold("locks.take_devices(['cpu-0'], owner='other')")
    assert locks.take_devices(["cpu-0"], owner="me", need_one=False) == frozenset()


def test_of_workers_that_start_at_once_one_has_the_device(tmp_path: Path) -> None:
    workers = [Locks(tmp_path) for _ in range(8)]
    ready = threading.Barrier(len(workers))

    def take(worker: Locks) -> frozenset[str]:
        ready.wait()
        return worker.take_devices(["GPU-1"], owner=str(id(worker)), need_one=False)

    with ThreadPoolExecutor(len(workers)) as threads:
        taken = list(threads.map(take, workers))
    assert sorted(len(each) for each in taken) == [0] * 7 + [1]
    for worker in workers:
        worker.close()


def test_a_lock_that_was_tidied_away_while_it_was_taken_binds_nobody(
    locks: Locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real = fcntl.flock

    def tidied_up_before(file: IO[str], operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        Path(f"/proc/self/fd/{file.fileno()}").readlink().unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", tidied_up_before)
    assert locks.take_devices(["cpu-0"], owner="me") == {"cpu-0"}
    with pytest.raises(DevicesTakenError):
        Locks(tmp_path).take_devices(["cpu-0"], owner="other")


def test_locks_are_shared_with_workers_of_other_users(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    locks = Locks(tmp_path / "locks")
    locks.take_devices(["cpu-0"], owner="one")
    os.umask(umask)
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777
    files = list((tmp_path / "locks").iterdir())
    assert files
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666}
    assert str(default_lock_directory()).startswith(tempfile.gettempdir())
    assert str(os.getuid()) not in default_lock_directory().name
    locks.close()


def test_a_link_in_the_place_of_a_lock_is_not_followed(locks: Locks, tmp_path: Path) -> None:
    locks.take_devices(["cpu-0"], owner="one")
    locks.close()
    for file in tmp_path.glob("*.lock"):
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="XONAR_LOCK_DIRECTORY"):
        locks.take_devices(["cpu-0"], owner="one")
    assert not (tmp_path / "elsewhere").exists()


def test_locks_in_use_are_kept_from_being_tidied_away(locks: Locks, tmp_path: Path) -> None:
    locks.take_name("gpus", "one")
    locks.take_devices(["cpu-0"], owner="one")
    held = sorted(tmp_path.glob("*.lock"))
    for file in held:
        os.utime(file, (0, 0))
    locks.keep()
    fresh = [file for file in held if file.stat().st_mtime > 0]
    assert len(fresh) == 2


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
