"""Who took what on the device on which a training ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence

from xonar_prefect.core.memory import capacity_mib
from xonar_prefect.core.models import Device, Limits
from xonar_prefect.core.out_of_memory import Shortage
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.worker.slots import Slot


def shortage_of(
    slot: Slot, partners: Sequence[Slot], readings: Sequence[DeviceReading], limits: Limits
) -> Shortage:
    """Return what is known of a training that has just run out of memory.

    Args:
        slot: The training.
        partners: The other trainings on its devices.
        readings: The devices now; of its own, the one with the least left counts.
        limits: The rules of a release: what of a device is never given away.
    """
    reported = (slot.status.peak_memory_mib if slot.status else None) or 0
    own = [each for each in readings if each.id in slot.entry.devices and each.memory_mib]
    if not own:
        return Shortage(request_mib=slot.entry.request_mib, used_mib=reported)
    reading = min(own, key=lambda each: each.memory_mib - each.reserved_mib - each.used_mib)
    mine = sum(reading.used_by_pid.get(pid, 0) for pid in slot.all_pids)
    offender, offender_mib = _offender(partners, reading)
    return Shortage(
        request_mib=slot.entry.request_mib,
        used_mib=max(reported, mine),
        usable_mib=_capacity_mib(reading, limits),
        others_mib=max(0, reading.used_mib - mine),
        offender=offender.entry.name if offender else None,
        offender_run_id=offender.entry.run_id if offender else None,
        offender_mib=offender_mib,
    )


def _capacity_mib(reading: DeviceReading, limits: Limits) -> int:
    empty = Device(
        id=reading.id,
        index=reading.index,
        model=reading.model,
        memory_mib=reading.memory_mib,
        reserved_mib=reading.reserved_mib,
    )
    return capacity_mib(empty, limits)


def _offender(partners: Sequence[Slot], reading: DeviceReading) -> tuple[Slot | None, int]:
    """Return the partner that is furthest over its own reservation, and what it uses."""
    over: list[tuple[int, int, Slot]] = []
    for position, partner in enumerate(partners):
        request = partner.entry.request_mib
        used = sum(reading.used_by_pid.get(pid, 0) for pid in partner.pids)
        if request is not None and used > request:
            over.append((used - request, position, partner))
    if not over:
        return None, 0
    excess, _, partner = max(over, key=lambda each: each[:2])
    return partner, (partner.entry.request_mib or 0) + excess
