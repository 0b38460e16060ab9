"""Who took what, on the device on which a training ran out of memory."""

from __future__ import annotations

from typing import Any

import pytest

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.run_directory import Status
from xonar_prefect.worker.shortages import shortage_of
from xonar_prefect.worker.slots import Slot


def slot(name: str, pids: list[int], request_mib: int | None, *devices: str) -> Slot:
    entry = LedgerEntry(
        run_id=name,
        name=name,
        worker="one",
        state=SlotState.RUNNING,
        devices=devices or ("GPU-1",),
        request_mib=request_mib,
        run_directory=name,
        reserved_at_s=0.0,
    )
    training = Training(run_id=name, name=name, submitted_at_s=0.0)
    return Slot(entry=entry, training=training, pids=pids, all_pids=set(pids))


def gpu(id_: str = "GPU-1", **values: Any) -> DeviceReading:
    return DeviceReading(id=id_, index=0, model="RTX", **{"memory_mib": 24000, **values})


def test_what_it_used_and_what_others_use_are_told_apart() -> None:
    victim = slot("victim", [1, 2], 8000)
    reading = gpu(used_mib=15000, reserved_mib=500, used_by_pid={1: 3000, 2: 2000, 9: 7000})
    shortage = shortage_of(victim, [], [reading], Limits(headroom_mib=500))
    assert (shortage.used_mib, shortage.others_mib, shortage.usable_mib) == (5000, 10000, 23000)


def test_the_higher_of_its_own_report_and_what_was_seen_counts() -> None:
    victim = slot("victim", [1], 8000)
    victim.status = Status(peak_memory_mib=7000)
    shortage = shortage_of(victim, [], [gpu(used_mib=100, used_by_pid={1: 100})], Limits())
    assert shortage.used_mib == 7000


def test_of_several_devices_the_tightest_counts() -> None:
    victim = slot("victim", [1], 8000, "GPU-1", "GPU-2")
    readings = [gpu("GPU-1", used_mib=100), gpu("GPU-2", used_mib=20000), gpu("GPU-3")]
    assert shortage_of(victim, [], readings, Limits()).others_mib == 20000


def test_the_partner_that_is_furthest_over_its_own_reservation_is_named() -> None:
    victim = slot("victim", [1], 8000)
    partners = [slot("modest", [2], 4000), slot("greedy", [3], 4000), slot("worse", [4], 1000)]
    reading = gpu(used_mib=17000, used_by_pid={2: 4000, 3: 6000, 4: 7000})
    shortage = shortage_of(victim, partners, [reading], Limits())
    assert (shortage.offender, shortage.offender_mib) == ("worse", 7000)


@pytest.mark.parametrize("readings", [[], [gpu(memory_mib=0, unavailable="lost")]])
def test_a_device_that_cannot_be_read_tells_nothing(readings: list[DeviceReading]) -> None:
    shortage = shortage_of(slot("victim", [1], 8000), [], readings, Limits())
    assert shortage.usable_mib is None
    assert shortage.is_own_fault
