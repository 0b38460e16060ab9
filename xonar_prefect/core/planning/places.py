"""A device while a plan is made, and whether a training may go there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xonar_prefect.core import memory
from xonar_prefect.core.memory import Need
from xonar_prefect.core.models import Device, Limits, ReasonCode, Resident, Training
from xonar_prefect.core.planning.kinds import Kind


class Place:
    """A device, what the plan has put there so far, and for whom it is reserved.

    Attributes:
        device: The device, with the plan's releases among its residents.
        available_mib: What may still be reserved on it.
        unprofiled: Residents that have the whole device because their peak is not known yet.
        reserved_for: The training that waited longest; no later one may come here before it.
    """

    __slots__ = ("_limits", "available_mib", "device", "memory_type", "reserved_for", "unprofiled")

    def __init__(self, device: Device, limits: Limits) -> None:
        residents = sorted(device.residents, key=lambda r: (r.started_at_s, r.training.run_id))
        self._limits = limits
        self._settle(replace(device, residents=tuple(residents)))
        self.memory_type = (device.model, device.memory_mib, device.reserved_mib)
        self.reserved_for: Training | None = None

    @property
    def residents(self) -> tuple[Resident, ...]:
        """Who is there, in the order of their starts."""
        return self.device.residents

    @property
    def label(self) -> str:
        """The device's name for people."""
        return self.device.label

    def put(self, resident: Resident) -> None:
        """Add a resident."""
        self._settle(replace(self.device, residents=(*self.device.residents, resident)))

    def _settle(self, device: Device) -> None:
        self.device = device
        self.available_mib = memory.available_mib(device, self._limits)
        self.unprofiled = tuple(
            resident.training
            for resident in device.residents
            if resident.request_mib is None
            and not resident.training.memory_elastic
            and memory.request_mib(resident.training, device.model, self._limits) is None
        )

    def need_of(self, kind: Kind) -> Need:
        """Return what trainings of this kind must be given here."""
        need = kind.needs.get(self.memory_type)
        if need is None:
            need = memory.need_on(kind.trainings[0], self.device, self._limits)
            kind.needs[self.memory_type] = need
        return need

    def obstacle(self, kind: Kind, training: Training, slots: int) -> ReasonCode | None:
        """Return what keeps a training from this place, looking at nothing but the place.

        Args:
            kind: The training's kind.
            training: The training.
            slots: Trainings that a device may take.
        """
        if self.device.unavailable is not None:
            return ReasonCode.NO_DEVICE
        if training.gpus > 1 and self.device.is_slice:
            return ReasonCode.GANG_INCOMPLETE
        if len(self.residents) >= slots:
            return ReasonCode.NO_FREE_SLOT
        need = self.need_of(kind)
        if not need.possible:
            return ReasonCode.INSUFFICIENT_MEMORY
        if self.residents:
            code = self._obstacle_beside(training, need)
            if code is not None:
                return code
        if not memory.fits(need, self.device, self.available_mib, self._limits):
            if need.known:
                return ReasonCode.INSUFFICIENT_MEMORY
            return ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE
        if self.is_kept_from(training):
            return ReasonCode.OLDER_TRAINING_WAITS
        return None

    def _obstacle_beside(self, training: Training, need: Need) -> ReasonCode | None:
        residents = self.residents
        if training.exclusive or any(resident.training.exclusive for resident in residents):
            return ReasonCode.EXCLUSIVE
        if self.unprofiled:
            return ReasonCode.PARTNER_UNPROFILED
        if not need.known:
            return ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE
        if any(len(resident.devices) != training.gpus for resident in residents):
            return ReasonCode.GANG_INCOMPLETE
        return None

    def is_kept_from(self, training: Training) -> bool:
        """Tell whether the place is reserved for a training that was submitted earlier."""
        older = self.reserved_for
        return older is not None and age_key(training) > age_key(older)


def age_key(training: Training) -> tuple[float, str]:
    """Sort key of age: the longest waiting first, whatever its priority."""
    return (training.submitted_at_s, training.run_id)


@dataclass(frozen=True, slots=True)
class Option:
    """A release that would keep all rules.

    Attributes:
        kind: The kind of the training.
        training: Whom: the first of its kind.
        places: Where, in the order of device ids.
        request_mib: What would be reserved on each; None for all of it.
    """

    kind: Kind
    training: Training
    places: tuple[Place, ...]
    request_mib: int | None

    @property
    def partners(self) -> tuple[Training, ...]:
        """The trainings already there; the same on each of several devices."""
        return tuple(resident.training for resident in self.places[0].residents)

    @property
    def device_model(self) -> str:
        """The model of the devices."""
        return self.places[0].device.model

    @property
    def available_mib(self) -> int:
        """The least that is available on any of the devices."""
        return min(place.available_mib for place in self.places)
