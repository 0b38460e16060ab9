"""Slots: written down before anything starts, counted until they are free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from xonar_prefect.core.decisions import ReasonCode, Release
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.run_directory import Exit, Status
from xonar_prefect.store import Store
from xonar_prefect.worker.processes import boot_id, started_ticks
from xonar_prefect.worker.slots import Slots

CORE = DeviceReading(
    id="cpu-0", index=0, model="core", memory_mib=8000, used_mib=700, used_by_pid={7: 300, 8: 50}
)


class FailingStore(Store):
    """A store whose disk can be full."""

    full = False

    def record(self, entry: LedgerEntry) -> None:
        if self.full:
            raise StoreUnusableError("sqlite:///store.db", "the disk is full")
        super().record(entry)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FailingStore]:
    with FailingStore.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert isinstance(store, FailingStore)
        yield store


@pytest.fixture
def slots(store: Store) -> Slots:
    return Slots(store, "one", lambda: 100.0)


def release(run_id: str, *devices: str, request_mib: int | None = 500) -> Release:
    return Release(
        training=Training(run_id=run_id, name=f"train {run_id}", submitted_at_s=0.0),
        devices=devices,
        code=ReasonCode.FIRST_ON_DEVICE,
        reason="It is first.",
        request_mib=request_mib,
    )


async def test_a_reservation_is_durable_before_anything_is_started(
    slots: Slots, store: Store, tmp_path: Path
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    (entry,) = store.open_entries("one")
    assert entry == slot.entry
    assert entry.state is SlotState.RESERVED
    assert (entry.devices, entry.request_mib, entry.reserved_at_s) == (("cpu-0",), 500, 100.0)
    assert not slot.run_directory.path.exists()


async def test_what_cannot_be_written_down_is_not_reserved(
    slots: Slots, store: FailingStore, tmp_path: Path
) -> None:
    store.full = True
    with pytest.raises(StoreUnusableError):
        await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    assert "a" not in slots
    assert len(slots) == 0


async def test_a_store_that_fails_later_does_not_stop_the_training(
    slots: Slots, store: FailingStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    store.full = True
    await slots.advance(slot, state=SlotState.RUNNING, launcher_pid=7)
    assert (slot.entry.state, slot.entry.launcher_pid) == (SlotState.RUNNING, 7)
    assert "Run a is not yet in the ledger" in caplog.text
    store.full = False
    await slots.settle()
    assert store.open_entries("one") == (slot.entry,)


async def test_a_slot_that_was_freed_while_the_store_failed_is_closed_in_the_ledger_later(
    slots: Slots, store: FailingStore, tmp_path: Path
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    store.full = True
    await slots.free(slot)
    assert "a" not in slots
    store.full = False
    await slots.settle()
    assert store.open_entries("one") == ()


async def test_a_free_slot_is_closed_in_the_ledger_and_told_to_those_who_wait(
    slots: Slots, store: Store, tmp_path: Path
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    await slots.free(slot)
    assert slot.freed.is_set()
    assert "a" not in slots
    assert store.open_entries("one") == ()
    assert store.entries(run_id="a")[0].state is SlotState.ENDED


async def test_measured_windows_are_written_with_the_slot(
    slots: Slots, store: Store, tmp_path: Path
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    for steps in (10, 30):
        slot.meter.observe(
            Status(phase="training", steps_done=steps, stepping_seconds=steps / 10), {}
        )
    await slots.free(slot)
    (entry,) = store.entries(run_id="a")
    assert entry.co_runs == (CoRun(steps=20, seconds=2.0),)


async def test_an_adopted_slot_goes_on_where_it_was(slots: Slots, tmp_path: Path) -> None:
    entry = LedgerEntry(
        run_id="a",
        name="train a",
        worker="one",
        state=SlotState.RUNNING,
        devices=("cpu-0",),
        run_directory=str(tmp_path),
        reserved_at_s=1.0,
        co_runs=(CoRun(steps=20, seconds=2.0),),
    )
    training = Training(run_id="a", name="train a", submitted_at_s=0.0)
    slot = slots.adopt(entry, training)
    assert slots.get("a") is slot
    assert slot.meter.co_runs == entry.co_runs


async def test_partners_are_those_on_any_device_of_a_training(slots: Slots, tmp_path: Path) -> None:
    gang = await slots.reserve(release("g", "cpu-0", "cpu-1"), "core", tmp_path)
    beside = await slots.reserve(release("b", "cpu-1"), "core", tmp_path)
    elsewhere = await slots.reserve(release("e", "cpu-2"), "core", tmp_path)
    without = await slots.reserve(release("w"), "none", tmp_path)
    assert slots.partners(gang) == (beside,)
    assert slots.partners(beside) == (gang,)
    assert slots.partners(elsewhere) == slots.partners(without) == ()
    assert slots.without_device() == 1


async def test_a_launching_training_counts_with_its_full_request(
    slots: Slots, tmp_path: Path
) -> None:
    await slots.reserve(release("a", "cpu-0", request_mib=500), "core", tmp_path)
    (device,) = slots.devices([CORE])
    (resident,) = device.residents
    assert (resident.request_mib, resident.used_mib) == (500, 0)
    assert (device.memory_mib, device.used_mib) == (8000, 700)


async def test_what_its_processes_use_is_attributed_to_a_training(
    slots: Slots, tmp_path: Path
) -> None:
    a = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    b = await slots.reserve(release("b", "cpu-0"), "core", tmp_path)
    a.pids, b.pids = [7, 8], [9]
    assert slots.processes_by_device() == {"cpu-0": [7, 8, 9]}
    (device,) = slots.devices([CORE])
    assert {r.training.run_id: r.used_mib for r in device.residents} == {"a": 350, "b": 0}


async def test_a_training_without_a_device_occupies_none(slots: Slots, tmp_path: Path) -> None:
    await slots.reserve(release("w"), "none", tmp_path)
    (device,) = slots.devices([CORE])
    assert device.residents == ()


async def test_what_is_left_to_do_follows_from_the_pace_so_far(
    slots: Slots, tmp_path: Path
) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    assert slot.remaining_seconds is None
    slot.status = Status(phase="training", steps_done=20, stepping_seconds=4.0)
    assert slot.remaining_seconds is None  # its length is unknown
    slot.status = Status(phase="training", steps_done=20, steps_total=50, stepping_seconds=4.0)
    assert slot.remaining_seconds == pytest.approx(6.0)
    (device,) = slots.devices([CORE])
    assert device.residents[0].remaining_seconds == pytest.approx(6.0)


async def test_a_launcher_is_known_by_its_start_and_boot_not_by_its_number(
    slots: Slots, tmp_path: Path
) -> None:
    import os

    me = os.getpid()
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    assert not slot.launcher_lives
    ticks = started_ticks(me)
    await slots.advance(slot, launcher_pid=me, launcher_started_ticks=ticks, boot_id=boot_id())
    assert slot.launcher_lives
    await slots.advance(slot, boot_id="the boot before")
    assert not slot.launcher_lives
    await slots.advance(slot, boot_id=boot_id(), launcher_started_ticks=1)
    assert not slot.launcher_lives


async def test_the_exit_is_read_from_the_run_directory(slots: Slots, tmp_path: Path) -> None:
    slot = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    assert slot.exit is None
    slot.run_directory.path.mkdir()
    slot.run_directory.exit_file.write_text(json.dumps({"exit_code": -9, "ended_at_s": 5.0}))
    assert slot.exit == Exit(exit_code=-9, ended_at_s=5.0)


async def test_a_partner_that_never_came_leaves_no_trace(slots: Slots, tmp_path: Path) -> None:
    stays = await slots.reserve(release("a", "cpu-0"), "core", tmp_path)
    never_came = await slots.reserve(release("b", "cpu-0"), "core", tmp_path)
    stays.meter.expect({"b": "kind"}, 1.5)
    await slots.free(never_came)  # its claim failed
    assert stays.meter.co_runs == ()
