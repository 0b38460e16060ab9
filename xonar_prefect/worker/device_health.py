"""Keeps trainings off devices that are not well, and lets them return when the cause is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.quarantine import RELEASED_BY_HAND, QuarantineCause
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.worker.device_memory import MemoryWatch, is_back, left_behind
from xonar_prefect.worker.device_watch import DeviceWatch
from xonar_prefect.worker.fail_fast import FailFast
from xonar_prefect.worker.orders import Order, Orders
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.slots import Slot, Slots

_READ_EVERY_SECONDS = 2.0
# From the end of a command. By then what it left was killed, and a process that does not die of
# that hangs in a driver.
_PROCESSES_STAY_SECONDS = 30.0


class DeviceHealth:
    """Judges devices by what they show, by how trainings fare on them, and by what people say."""

    def __init__(
        self,
        devices: DeviceWatch,
        slots: Slots,
        quarantines: Quarantines,
        *,
        orders: Orders,
        fail_fast: FailFast,
        memory: MemoryWatch,
        clock: Callable[[], float],
    ) -> None:
        self._devices = devices
        self._slots = slots
        self._quarantines = quarantines
        self._orders = orders
        self._fail_fast = fail_fast
        self._memory = memory
        self._clock = clock
        self._read_at_s: float | None = None
        self._freed: list[Slot] = []

    async def look(self) -> bool:
        """Look at everything that speaks for or against a device.

        Returns:
            Whether a device takes trainings again, or a training is known to need more memory:
            reason to decide again.
        """
        self._freed += self._slots.take_freed()
        now = self._clock()
        due = self._read_at_s is None or now - self._read_at_s >= _READ_EVERY_SECONDS
        if not self._freed and not due:
            return False
        closed = self._quarantines.devices()
        readings = {reading.id: reading for reading in await self._devices.look()}
        freed = tuple(self._freed)
        self._quarantines.end_expired()
        self._obey(self._orders.read(), readings)
        await self._fail_fast.look(freed)
        self._keep_off_leftovers(freed, readings)
        self._keep_off_staying_processes()
        self._freed, self._read_at_s = [], now  # not before all of it could be looked at
        changed = await self._memory.look(tuple(readings.values()))
        await self._quarantines.write()
        return changed or bool(closed - self._quarantines.devices())

    def _obey(self, orders: Mapping[str, Order], devices: Iterable[str]) -> None:
        by_hand = QuarantineCause.BY_HAND
        for device in devices:
            order = orders.get(device)
            if order is not None and order.drains_at(self._clock()):
                reason = order.as_reason()
                self._quarantines.begin(device, by_hand, reason, until_s=order.until_s)
                continue
            self._quarantines.end(device, by_hand)
            if order is not None and not order.drained:
                self._release(device, order.at_s)

    def _release(self, device: str, said_at_s: float) -> None:
        self._fail_fast.forgive(device, said_at_s)
        for cause in RELEASED_BY_HAND:
            quarantine = self._quarantines.get(device, cause)
            if quarantine is not None and quarantine.begun_at_s <= said_at_s:
                self._quarantines.end(device, cause)

    def _keep_off_leftovers(
        self, freed: Sequence[Slot], readings: Mapping[str, DeviceReading]
    ) -> None:
        """Leave devices alone whose memory was not given back; it would be missed in the plan."""
        cause = QuarantineCause.MEMORY_NOT_BACK
        for slot in freed:
            for device in readings.keys() & set(slot.entry.devices):
                left = left_behind(slot, self._slots, readings[device])
                if left is not None:
                    known = self._quarantines.get(device, cause)
                    reason = (
                        f"{left.mib} MiB of {slot.entry.name!r} are still in use although its "
                        "processes are gone"
                    )
                    self._quarantines.begin(
                        device,
                        cause,
                        reason,
                        pids=(*(known.pids if known else ()), *left.pids),
                        used_mib=left.used_mib,
                    )
        for device, reading in readings.items():
            quarantine = self._quarantines.get(device, cause)
            if quarantine and is_back(reading, quarantine.pids, quarantine.used_mib):
                self._quarantines.end(device, cause)

    def _keep_off_staying_processes(self) -> None:
        cause = QuarantineCause.PROCESSES_STAY
        staying = {
            device: slot
            for slot in self._slots
            if self._stays(slot)
            for device in slot.entry.devices
        }
        for device, slot in staying.items():
            reason = f"processes of {slot.entry.name!r} do not end although they were killed"
            self._quarantines.begin(device, cause, reason, pids=tuple(sorted(slot.pids)))
        for device in self._quarantines.devices() - staying.keys():
            self._quarantines.end(device, cause)

    def _stays(self, slot: Slot) -> bool:
        ended_at_s = slot.entry.ended_at_s
        if slot.entry.state is not SlotState.DRAINING or not slot.pids or ended_at_s is None:
            return False
        return self._clock() - ended_at_s >= _PROCESSES_STAY_SECONDS
