"""This host's devices as commands see them: from the driver, the ledger and people's orders."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xonar_prefect.cli.residents import LocalTraining, local_trainings
from xonar_prefect.core.quarantine import RELEASED_BY_HAND, Quarantine, QuarantineCause
from xonar_prefect.errors import AmbiguousDeviceError, DeviceError, UnknownDeviceError
from xonar_prefect.worker.orders import Order

if TYPE_CHECKING:
    from xonar_prefect.devices.base import DeviceReading
    from xonar_prefect.settings import XonarSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """A device, who is on it, and what keeps others off it.

    Attributes:
        reading: What the driver says.
        trainings: The trainings that hold a slot of it.
        quarantines: What keeps trainings off it, apart from what the driver says.
        slots: Trainings that it may take.
    """

    reading: DeviceReading
    trainings: tuple[LocalTraining, ...]
    quarantines: tuple[Quarantine, ...]
    slots: int

    @property
    def unavailable(self) -> str | None:
        """Why nothing is released to it."""
        clauses = [each.clause for each in self.quarantines]
        return "; ".join([*clauses, *filter(None, [self.reading.unavailable])]) or None

    @property
    def free_slots(self) -> int:
        """How many more trainings it could take; none beside one that has all its memory."""
        if any(training.entry.request_mib is None for training in self.trainings):
            return 0
        return max(0, self.slots - len(self.trainings))

    def as_json(self) -> dict[str, Any]:
        """Return its figures as JSON values; unknown is None."""
        reading = self.reading
        unread = reading.unavailable is not None
        state = "free" if self.unavailable is None else "quarantined"
        return {
            "id": reading.id,
            "index": reading.index,
            "model": reading.model,
            "memory_mib": reading.memory_mib,
            "reserved_mib": reading.reserved_mib,
            "used_mib": None if unread else reading.used_mib,
            "unattributed_mib": None if unread else reading.unattributed_mib,
            "unavailable": self.unavailable,
            "quarantines": [
                {
                    "cause": each.cause.value,
                    "reason": each.reason,
                    "begun_at_s": each.begun_at_s,
                    "until_s": each.until_s,
                }
                for each in self.quarantines
            ],
            "slots": [
                *(training.slot_as_json() for training in self.trainings),
                *[{"state": state, "reason": self.unavailable}] * self.free_slots,
            ],
            "trainings": [training.as_json() for training in self.trainings],
        }


def local_devices(settings: XonarSettings) -> list[LocalDevice]:
    """Return this host's devices, whom the ledger has on them, and what keeps others off.

    Raises:
        DeviceError: They cannot be read, and no training is on any.
        StoreError: The store cannot be opened.
    """
    from xonar_prefect.store import Store
    from xonar_prefect.worker.orders import Orders

    host = socket.gethostname()
    with Store.open(settings.effective_store_url) as store:
        released = store.open_entries(host=host)
        trainings = local_trainings(entry for entry in released if entry.holds_devices)
        quarantines = store.open_quarantines(host)
    orders = Orders(settings.home, host).read()
    now_s = time.time()
    return [
        LocalDevice(
            reading=reading,
            trainings=tuple(each for each in trainings if reading.id in each.entry.devices),
            quarantines=standing(
                reading.id, quarantines, orders.get(reading.id), host=host, now_s=now_s
            ),
            slots=settings.max_trainings_per_gpu,
        )
        for reading in read_devices(settings, trainings)
    ]


def read_devices(
    settings: XonarSettings, trainings: Sequence[LocalTraining]
) -> tuple[DeviceReading, ...]:
    """Read this host's devices; while the driver fails, those that trainings are on.

    Raises:
        DeviceError: They cannot be read, and no training is on any.
    """
    from xonar_prefect.devices import discover
    from xonar_prefect.devices.base import DeviceReading
    from xonar_prefect.worker.processes import ProcessTrees

    trees = ProcessTrees().scan() if trainings else {}
    processes: dict[str, list[int]] = {}
    for training in trainings:
        for device in training.entry.devices:
            processes.setdefault(device, []).extend(trees.get(training.entry.run_directory, []))
    try:
        accelerators = discover(
            settings.devices,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            cpu_cores=settings.cpu_devices,
        )
        try:
            return accelerators.read(processes)
        finally:
            accelerators.close()
    except DeviceError as error:
        models = {id_: each.entry.device_model for each in trainings for id_ in each.entry.devices}
        if not models:
            raise
        return tuple(
            DeviceReading(id=id_, index=number, model=model, memory_mib=0, unavailable=str(error))
            for number, (id_, model) in enumerate(sorted(models.items()))
        )


def standing(
    device: str,
    quarantines: Iterable[Quarantine],
    order: Order | None,
    *,
    host: str,
    now_s: float,
) -> tuple[Quarantine, ...]:
    """Return what keeps trainings off a device now, apart from what its driver says.

    The store says what a worker has noticed, which it does only while it runs; people's orders
    count at once, and what has reached its end has ended.
    """
    lasting = [
        each
        for each in quarantines
        if each.device == device
        and each.cause not in (QuarantineCause.BY_HAND, QuarantineCause.DEVICE)
        and (each.until_s is None or now_s < each.until_s)
        and not (_is_released(each, order))
    ]
    if order is not None and order.drains_at(now_s):
        by_hand = Quarantine(
            host=host,
            device=device,
            cause=QuarantineCause.BY_HAND,
            reason=order.as_reason(),
            begun_at_s=order.at_s,
            until_s=order.until_s,
        )
        lasting.insert(0, by_hand)
    return tuple(lasting)


def _is_released(quarantine: Quarantine, order: Order | None) -> bool:
    if order is None or order.drained or quarantine.cause not in RELEASED_BY_HAND:
        return False
    return quarantine.begun_at_s <= order.at_s


def named(text: str, readings: Sequence[DeviceReading]) -> str:
    """Return the id of the device that a person means by its index, its id or a part of it.

    Raises:
        UnknownDeviceError: There is no such device.
        AmbiguousDeviceError: Several ids begin like this.
    """
    given = text.strip()
    by_index = {str(reading.index): reading.id for reading in readings}
    if given in by_index:
        return by_index[given]
    ids = [reading.id for reading in readings]
    lowered = given.casefold()
    matching = [id_ for id_ in ids if lowered and id_.casefold().startswith(lowered)]
    exact = [id_ for id_ in matching if id_.casefold() == lowered]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        raise AmbiguousDeviceError(text, matching)
    raise UnknownDeviceError(text, (f"{reading.index} = {reading.id}" for reading in readings))
