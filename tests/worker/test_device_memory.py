"""Memory that nobody planned for: peaks above a profile, and other people's processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.gpus import Host, World, host, profile
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.memory import available_mib
from xonar_prefect.core.models import Limits
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.worker.device_memory import left_behind
from xonar_prefect.worker.slots import Slot

RECIPE = Recipe(flow="digits", entrypoint="digits.py:digits", task="train")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def box(tmp_path: Path, world: World) -> Iterator[Host]:
    with host(tmp_path, world) as box:
        yield box


def with_profile(box: Host, slot: Slot, *peaks_mib: int | None) -> None:
    """Let the training be of as many kinds as there are peaks, each with a stored profile."""
    keys = [f"k{number}" for number in range(len(peaks_mib))]
    for key, peak_mib in zip(keys, peaks_mib, strict=True):
        box.store.ingest_profile(key, profile(key, peak_mib), RECIPE, 1.0)
    highest = max((mib for mib in peaks_mib if mib is not None), default=None)
    key = "+".join(keys)
    slot.training = replace(
        slot.training, profile_key=key, profiles={"V100": profile(key, highest)}
    )


def peak(box: Host, key: str = "k0") -> int | None:
    return box.store.profiles_for(key)["V100"].peak_memory_mib


# --- peaks ---


async def test_a_peak_above_profile_and_margin_corrects_the_profile_while_it_runs(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # Project-HAMi/HAMi-core#79, HAMi#446: what the driver attributes, context included.
    slot = await box.start("r", "a", pids=[7, 8])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=1300, used_by_pid={7: 800, 8: 500})
    assert await box.look()
    assert peak(box) == 1300
    assert world.renewed == ["train r"]
    assert "'train r' uses 1300 MiB on a device, more than the peak of 1000 MiB" in caplog.text


async def test_what_a_framework_takes_in_advance_is_no_peak(box: Host, world: World) -> None:
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    most_mib = world.gpus[0].memory_mib * 9 // 10
    world.change("a", used_mib=most_mib, used_by_pid={7: most_mib})
    assert not await box.look()
    assert peak(box) == 1000


async def test_a_peak_within_the_margin_leaves_the_profile_alone(box: Host, world: World) -> None:
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=1100, used_by_pid={7: 1100})
    assert not await box.look()
    assert peak(box) == 1000


async def test_a_growing_training_is_not_written_down_at_every_look(
    box: Host, world: World
) -> None:
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    for mib in (2000, 2010, 2064, 2065):
        world.change("a", used_mib=mib, used_by_pid={7: mib})
        await box.look()
    assert peak(box) == 2065
    assert len(world.renewed) == 2


async def test_every_task_of_a_run_is_given_its_peak(box: Host, world: World) -> None:
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 300, 1000)
    world.change("a", used_mib=2000, used_by_pid={7: 2000})
    await box.look()
    assert (peak(box, "k0"), peak(box, "k1")) == (2000, 2000)


async def test_a_peak_between_two_looks_at_the_health_counts(box: Host, world: World) -> None:
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=2000, used_by_pid={7: 2000})
    await box.unavailable()
    world.change("a", used_mib=500, used_by_pid={7: 500})
    await box.look()
    assert peak(box) == 2000


async def test_what_has_no_profile_or_no_peak_is_left_to_its_measurement(
    box: Host, world: World
) -> None:
    await box.start("new", "a", pids=[7])
    unknown = await box.start("unknown", "b", pids=[8])
    with_profile(box, unknown, None)
    for name, pid in (("a", 7), ("b", 8)):
        world.change(name, used_mib=9000, used_by_pid={pid: 9000})
    assert not await box.look()
    assert peak(box) is None


async def test_a_correction_that_cannot_be_stored_is_made_later(
    box: Host, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise StoreUnusableError("sqlite:///store.db", "the disk is full")

    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=2000, used_by_pid={7: 2000})
    with monkeypatch.context() as patch:
        patch.setattr(box.store, "raise_peak", full)
        assert not await box.look()
    assert await box.look()
    assert peak(box) == 2000


async def test_a_peak_on_processor_cores_counts_too(box: Host, world: World) -> None:
    world.change("a", driver_keeps_memory=False)
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=2000, used_by_pid={7: 1800})
    await box.look()
    assert peak(box) == 1800


async def test_where_memory_is_not_attributed_the_only_training_has_what_came_with_it(
    box: Host, world: World
) -> None:
    # XuehaiPan/nvitop#55, microsoft/WSL#7162: no memory per process in a virtual machine.
    world.change("a", used_mib=400)
    slot = await box.start("r", "a", pids=[7])
    with_profile(box, slot, 1000)
    world.change("a", used_mib=2400)
    (device, _) = box.slots.devices(await box.devices.read())
    assert device.residents[0].used_mib == 2000
    await box.look()
    assert peak(box) == 2000


async def test_where_memory_is_not_attributed_nothing_is_guessed_of_two(
    box: Host, world: World
) -> None:
    one = await box.start("one", "a", pids=[7])
    two = await box.start("two", "a", pids=[8])
    world.change("a", used_mib=2400)
    (device, _) = box.slots.devices(await box.devices.read())
    assert [resident.used_mib for resident in device.residents] == [0, 0]
    assert (one.peak_mib, two.peak_mib) == (0, 0)
    # Unknown is never zero: all of it counts as somebody's, beside what is reserved.
    assert available_mib(device, Limits()) == 32000 - 2400 - 2 * 1000


# --- others (gpustack/gpustack#6044, Project-HAMi/HAMi#1069) ---


async def test_others_that_come_after_a_launch_are_said_once_and_so_is_that_they_left(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "xonar_prefect")
    await box.start("r", "a", pids=[7])
    world.change("a", used_mib=1000, used_by_pid={7: 1000})
    await box.look()
    assert "Others use" not in caplog.text
    for mib in (20000, 21000):
        world.change("a", used_mib=1000 + mib, used_by_pid={7: 1000, 4242: mib})
        await box.look()
    assert caplog.text.count("Others use") == 1
    assert "Others use 20000 MiB on GPU-a now, 0 MiB when 'train r' began there" in caplog.text
    assert "process 4242" in caplog.text
    world.change("a", used_mib=1000, used_by_pid={7: 1000})
    await box.look()
    await box.look()
    assert caplog.text.count("Others have left GPU-a") == 1


async def test_what_others_use_is_not_given_to_a_partner_until_they_leave(
    box: Host, world: World
) -> None:
    # AndPuQing/gflow PR#208: what others have is not there to be planned with.
    await box.start("r", "a", pids=[7])

    async def available() -> int:
        (device, _) = box.slots.devices(await box.devices.read())
        return available_mib(device, Limits())

    world.change("a", used_mib=31000, used_by_pid={7: 1000, 4242: 30000})
    assert await available() == 1000
    world.change("a", used_mib=31000, used_by_pid={7: 1000})  # hidden, but there
    assert await available() == 1000
    world.change("a", used_mib=1000, used_by_pid={7: 1000})
    assert await available() == 31000


async def test_others_that_were_there_before_are_no_event(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.change("a", used_mib=20000, used_by_pid={4242: 20000})
    await box.start("r", "a", pids=[7])
    world.change("a", used_mib=21000, used_by_pid={4242: 20000, 7: 1000})
    await box.look()
    assert "Others use" not in caplog.text


async def test_hidden_others_are_named_as_hidden(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await box.start("r", "a", pids=[7])
    world.change("a", used_mib=9000, used_by_pid={7: 1000})
    await box.look()
    assert "processes that the driver does not show" in caplog.text


@pytest.mark.parametrize("hidden", [{"driver_keeps_memory": False}, {"used_by_pid": {}}])
async def test_where_ours_cannot_be_told_from_others_nothing_is_said(
    box: Host, world: World, caplog: pytest.LogCaptureFixture, hidden: dict[str, object]
) -> None:
    world.change("a", **{**hidden, "used_by_pid": {}})
    await box.start("r", "a", pids=[7])
    world.change("a", used_mib=9000, **{"used_by_pid": {7: 1000}, **hidden})
    await box.look()
    assert "Others use" not in caplog.text


# --- left behind ---


async def test_memory_of_a_living_partner_is_not_taken_for_left_behind(
    box: Host, world: World
) -> None:
    gone = await box.start("gone", "a", pids=[7])
    await box.start("stays", "a", pids=[8])

    def left(**changes: object) -> int | None:
        world.change("a", **changes)
        found = left_behind(gone, box.slots, world.gpus[0])
        return None if found is None else found.mib

    assert left(used_mib=5000, used_by_pid={8: 5000}) is None
    assert left(used_mib=5000, used_by_pid={}) is None  # it may be the partner's
    assert left(used_mib=9000, used_by_pid={8: 5000}) == 4000
    assert left(used_mib=9000, used_by_pid={8: 5000, 7: 100}) == 100
    assert left(used_mib=5256, used_by_pid={8: 5000}) is None  # what figures differ by


async def test_memory_of_processor_cores_is_back_when_its_process_is_gone(
    box: Host, world: World
) -> None:
    core = DeviceReading(id="GPU-a", index=0, model="core", memory_mib=8000, used_mib=700)
    world.gpus[0] = core
    slot = await box.start("r", "a", pids=[7])
    assert left_behind(slot, box.slots, replace(core, used_mib=5000)) is None
