"""Reads the devices that are this worker's own, and keeps trainings off those that are not well."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import anyio.to_thread

from xonar_prefect.core.quarantine import QuarantineCause
from xonar_prefect.devices.base import Accelerators, DeviceReading
from xonar_prefect.errors import DeviceError
from xonar_prefect.worker.locks import Locks
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.slots import Slots

_logger = logging.getLogger(__name__)


class DeviceWatch:
    """The devices of one worker: each is locked before it is used, whenever it appears.

    A device that was seen once stays in every reading, also while the driver is away.

    Args:
        accelerators: Where devices are read.
        locks: Keeps other workers off them.
        owner: Who takes the locks.
        quarantines: What keeps trainings off them.
        slots: The trainings on them.
    """

    def __init__(
        self,
        accelerators: Accelerators,
        locks: Locks,
        *,
        owner: str,
        quarantines: Quarantines,
        slots: Slots,
    ) -> None:
        self._accelerators = accelerators
        self._locks = locks
        self._owner = owner
        self._quarantines = quarantines
        self._slots = slots
        self._own: frozenset[str] = frozenset()
        self._asked_for: set[str] = set()
        self._latest: tuple[DeviceReading, ...] = ()
        self._said: str | None = None

    def begin(self, held: Iterable[str]) -> None:
        """Take the devices that there are.

        A driver that is there but does not work does not stop a worker: trainings that it finds
        running need to be looked after, and devices are taken when they can be read.

        Args:
            held: Devices of trainings that an earlier life of this worker started.

        Raises:
            DevicesTakenError: Others have all devices.
            SettingsError: The directory of locks cannot be used.
            StoreError: The store cannot be read.
        """
        self._take(held, need_one=False)
        try:
            self._latest = self._accelerators.read({})
        except DeviceError as error:
            self._say(str(error))
        self._take([each.id for each in self._latest if each.named], need_one=True)

    @property
    def count(self) -> int:
        """How many devices this worker has taken."""
        return len(self._own)

    async def look(self) -> tuple[DeviceReading, ...]:
        """Read this worker's devices as they are, by index."""
        processes = self._slots.processes_by_device()
        try:
            found = await anyio.to_thread.run_sync(self._accelerators.read, processes)
            self._said = None
        except DeviceError as error:
            self._say(str(error))
            found = self._remembered(str(error))
        self._take([each.id for each in found if each.named], need_one=False)
        self._latest = tuple(each for each in found if each.id in self._own or not each.named)
        for reading in self._latest:
            if reading.unavailable is None:
                self._quarantines.end(reading.id, QuarantineCause.DEVICE)
            elif reading.named:
                cause = QuarantineCause.DEVICE
                self._quarantines.begin(reading.id, cause, reading.unavailable)
        self._slots.observe(self._latest)
        return self._latest

    async def read(self) -> tuple[DeviceReading, ...]:
        """Read this worker's devices; one in quarantine is unavailable."""
        return tuple(self._quarantines.cover(reading) for reading in await self.look())

    def _take(self, device_ids: Iterable[str], *, need_one: bool) -> None:
        """Lock devices that were not asked for before."""
        new = [each for each in device_ids if each not in self._asked_for]
        if not new:
            return
        taken = self._locks.take_devices(new, self._owner, need_one=need_one and not self._own)
        self._quarantines.take_over(taken)
        self._own |= taken
        self._asked_for.update(new)

    def _remembered(self, why: str) -> tuple[DeviceReading, ...]:
        """Return what was last read, unavailable; at least one device, to say why."""
        unread = DeviceReading(id="gpu-0", index=0, model="unknown", memory_mib=0, named=False)
        latest = self._latest or (unread,)
        return tuple(replace(each, unavailable=why, used_by_pid={}) for each in latest)

    def _say(self, sentence: str) -> None:
        if sentence != self._said:  # once, and not twice a second for as long as it lasts
            self._said = sentence
            _logger.error("No device can be read, so nothing is released: %s", sentence)
