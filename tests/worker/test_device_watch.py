"""Which devices are a worker's own, from its start on and when they appear."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.gpus import OWNER, World, gpu, host
from xonar_prefect.core.quarantine import QuarantineCause
from xonar_prefect.errors import DevicesTakenError
from xonar_prefect.worker.locks import Locks


@pytest.fixture
def world() -> World:
    return World()


def other_worker(directory: Path, *devices: str) -> Locks:
    locks = Locks(directory / "locks")
    locks.take_devices([f"GPU-{device}" for device in devices], "worker 'two' of pool 'gpus'")
    return locks


def nameless(index: int) -> dict[str, object]:
    return {"id": f"gpu-{index}", "named": False, "memory_mib": 0, "unavailable": "lost"}


async def test_a_worker_reads_the_devices_that_it_has_locked(tmp_path: Path, world: World) -> None:
    locks = other_worker(tmp_path, "a")
    with host(tmp_path, world) as box:
        assert list(await box.unavailable()) == ["GPU-b"]
        locks.close()  # what another worker had at the start may be left to its trainings
        assert list(await box.unavailable()) == ["GPU-b"]


def test_a_worker_to_which_no_device_is_left_does_not_start(tmp_path: Path, world: World) -> None:
    locks = other_worker(tmp_path, "a", "b")
    with pytest.raises(DevicesTakenError), host(tmp_path, world):
        pass
    locks.close()


async def test_a_gpu_without_a_name_is_locked_under_its_own_before_it_is_used(
    tmp_path: Path, world: World
) -> None:
    world.gpus = [gpu("a"), gpu("b", **nameless(1))]
    with host(tmp_path, world) as box:
        assert await box.unavailable() == {"GPU-a": None, "gpu-1": "lost"}
        world.gpus = [gpu("a"), gpu("b")]
        assert await box.unavailable() == {"GPU-a": None, "GPU-b": None}
        with pytest.raises(DevicesTakenError):
            other_worker(tmp_path, "b")


async def test_a_gpu_that_gets_its_name_goes_to_one_worker_only(
    tmp_path: Path, world: World
) -> None:
    world.gpus = [gpu("a"), gpu("b", **nameless(1))]
    with host(tmp_path, world) as box:
        locks = other_worker(tmp_path, "b")  # it saw it first
        world.gpus = [gpu("a"), gpu("b")]
        assert await box.unavailable() == {"GPU-a": None}
        locks.close()


async def test_a_driver_that_fails_at_the_start_does_not_stop_a_worker(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # lyulyul/shine-cluster#30: started again after an upgrade, its trainings still need it.
    world.driver_fails = "The NVIDIA driver and its library do not match."
    with host(tmp_path, world, held=["GPU-a"]) as box:
        assert "do not match" in caplog.text
        assert await box.unavailable() == {
            "gpu-0": "The NVIDIA driver and its library do not match."
        }
        with pytest.raises(DevicesTakenError):
            other_worker(tmp_path, "a")
        world.driver_fails = None
        assert await box.unavailable() == {"GPU-a": None, "GPU-b": None}


async def test_devices_of_its_earlier_life_are_its_own_though_trainings_hold_their_locks(
    tmp_path: Path, world: World
) -> None:
    earlier = Locks(tmp_path / "locks")
    earlier.take_devices(["GPU-a"], OWNER)
    with earlier.lent(["GPU-a"]):  # as a launcher does
        earlier.close()
        with host(tmp_path, world, held=["GPU-a"]) as box:
            assert list(await box.unavailable()) == ["GPU-a", "GPU-b"]


async def test_quarantines_of_another_workers_devices_are_left_alone(
    tmp_path: Path, world: World
) -> None:
    with host(tmp_path, world) as box:
        world.change("a", unavailable="lost")
        await box.look()
    world.change("a", unavailable=None)
    locks = other_worker(tmp_path, "a")
    with host(tmp_path, world) as box:
        await box.look()
        assert box.quarantines.get("GPU-a", QuarantineCause.DEVICE) is None
        assert len(box.store.open_quarantines("box")) == 1
    locks.close()
