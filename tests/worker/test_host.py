"""The host as a decision sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xonar_prefect.core.hosts import HostResident
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.devices.host_memory import HostMemory
from xonar_prefect.worker.disk import HomeDisk
from xonar_prefect.worker.host import HostWatch
from xonar_prefect.worker.slots import Slot

MIB = 1024 * 1024
USED_MIB = {7: 300, 8: 50}


@pytest.fixture
def disk(tmp_path: Path) -> HomeDisk:
    return HomeDisk(tmp_path, least_free_mib=10, least_free_inodes=5)


def watch(disk: HomeDisk, **changes: Any) -> HostWatch:
    plain: dict[str, Any] = {
        "on_devices": 4,
        "without_device": 4,
        "headroom_mib": 500,
        "memory": lambda: HostMemory(total_bytes=8500 * MIB, available_bytes=6000 * MIB),
        "used_bytes": lambda pid: USED_MIB[pid] * MIB if pid in USED_MIB else None,
        "threads": lambda: 16,
    }
    return HostWatch(disk, **{**plain, **changes})


def slot(*pids: int) -> Slot:
    training = Training(run_id="r", name="r", submitted_at_s=0.0)
    entry = LedgerEntry(
        run_id="r",
        name="r",
        worker="one",
        state=SlotState.RUNNING,
        run_directory="/r",
        reserved_at_s=1.0,
    )
    return Slot(entry=entry, training=training, pids=list(pids))


def test_the_host_is_read_with_what_our_processes_hold(disk: HomeDisk, tmp_path: Path) -> None:
    ours = slot(7, 8, 9)  # 9 has just ended
    host = watch(disk).read([ours])
    assert (host.memory_mib, host.used_memory_mib, host.headroom_mib) == (8500, 2500, 500)
    assert host.cpu_threads == 16
    assert host.residents == (HostResident(training=ours.training, used_memory_mib=350),)
    assert host.foreign_memory_mib == 2150
    assert host.disk is not None
    assert host.disk.path == str(tmp_path)


def test_an_unknown_need_is_an_even_share_of_what_is_not_headroom(disk: HomeDisk) -> None:
    assert watch(disk).read([]).share_mib == 1000
    assert watch(disk, headroom_mib=10_000).read([]).share_mib == 0


def test_shared_memory_is_read_where_there_is_any(disk: HomeDisk, tmp_path: Path) -> None:
    host = watch(disk, shared_memory=tmp_path).read([])
    assert host.shared_memory_mib is not None
    assert 0 <= host.used_shared_memory_mib <= host.shared_memory_mib
    assert watch(disk, shared_memory=tmp_path / "absent").read([]).shared_memory_mib is None


@pytest.mark.parametrize(
    ("wanted", "devices", "threads"),
    [
        pytest.param(None, 1, 4, id="an even share of 16 for one of 4"),
        pytest.param(None, 2, 8, id="a gang has the shares of its devices"),
        pytest.param(None, 0, 4, id="without a device as with one"),
        pytest.param(6, 1, 6, id="declared"),
    ],
)
def test_libraries_start_with_the_share_of_threads_or_with_what_was_declared(
    disk: HomeDisk, wanted: int | None, devices: int, threads: int
) -> None:
    environment = watch(disk).thread_environment(wanted, devices)
    assert environment == {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(4, threads)),
    }


def test_there_is_always_one_thread(disk: HomeDisk) -> None:
    few = watch(disk, threads=lambda: 1)
    assert few.thread_environment(None, 1)["OMP_NUM_THREADS"] == "1"
