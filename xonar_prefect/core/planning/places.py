"""A device while a plan is made, and whether a training may go there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from xonar_prefect.core import memory
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.memory import Need
from xonar_prefect.core.models import (
    Device,
    Limits,
    Resident,
    Training,
)
from xonar_prefect.core.planning.kinds import Kind

Clashes = frozenset[tuple[str, str, str]]


class Place:
    """A device, what the plan has put there so far, and for whom it is reserved.

    Most places of a large cluster are full, so nothing is worked out before somebody asks.

    Attributes:
        device: The device, with the plan's releases among its residents.
        reservations: Who waits for it, the longest waiting first; no later training may delay them.
        kept_free: Why the policy leaves its free slots empty, as code and sentence, if it does.
    """

    def __init__(self, device: Device, limits: Limits, clashes: Clashes = frozenset()) -> None:
        self._limits = limits
        self._clashes = clashes
        if len(device.residents) > 1:
            residents = tuple(sorted(device.residents, key=_start))
            if residents != device.residents:
                device = replace(device, residents=residents)
        self.device = device
        self.memory_type = (
            device.model,
            device.memory_mib,
            device.reserved_mib,
            *memory.terms(limits),
        )
        self.reservations: list[Reservation] = []
        self.kept_free: tuple[ReasonCode, str] | None = None

    @property
    def residents(self) -> tuple[Resident, ...]:
        """Who is there, in the order of their starts."""
        return self.device.residents

    @property
    def label(self) -> str:
        """The device's name for people."""
        return self.device.label

    @cached_property
    def available_mib(self) -> int:
        """What may still be reserved on it."""
        return memory.available_mib(self.device, self._limits)

    @cached_property
    def unprofiled(self) -> tuple[Training, ...]:
        """Residents that have the whole device because their peak is not known yet."""
        return tuple(
            resident.training
            for resident in self.residents
            if resident.request_mib is None
            and not resident.training.memory_elastic
            and memory.request_mib(resident.training, self.device.model, self._limits) is None
        )

    @property
    def reserved_for(self) -> list[Training]:
        """The trainings that it is reserved for, the longest waiting first."""
        return [reservation.training for reservation in self.reservations]

    def put(self, resident: Resident) -> None:
        """Add a resident."""
        self.device = replace(self.device, residents=(*self.device.residents, resident))
        self.__dict__.pop("available_mib", None)
        self.__dict__.pop("unprofiled", None)

    def need_of(self, kind: Kind) -> Need:
        """Return what trainings of this kind must be given here."""
        needs = kind.traits.needs
        need = needs.get(self.memory_type)
        if need is None:
            need = memory.need_on(kind.trainings[0], self.device, self._limits)
            needs[self.memory_type] = need
        return need

    def obstacle(self, kind: Kind, training: Training, slots: int) -> ReasonCode | None:
        """Return what keeps a training from this place, looking at nothing but the place.

        Args:
            kind: The training's kind.
            training: The training.
            slots: Trainings that a device may take.
        """
        code = self.obstacle_but_reservation(kind, training, slots)
        if code is None and self.is_kept_from(training):
            return ReasonCode.OLDER_TRAINING_WAITS
        return code

    def obstacle_but_reservation(
        self, kind: Kind, training: Training, slots: int
    ) -> ReasonCode | None:
        """Return what would keep a training from this place if it were not reserved."""
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
        if self.clashing(training):
            return ReasonCode.KNOWN_TO_CLASH
        return None

    def clashing(self, training: Training) -> tuple[Training, ...]:
        """Return the residents that ran out of memory beside such a training before."""
        if not self._clashes or training.profile_key is None:
            return ()
        key, model = training.profile_key, self.device.model
        return tuple(
            resident.training
            for resident in self.residents
            if resident.training.profile_key is not None
            and (model, *sorted((key, resident.training.profile_key))) in self._clashes
        )

    def is_kept_from(self, training: Training) -> bool:
        """Tell whether a training would delay one, submitted earlier, that it is reserved for."""
        return any(each.keeps_out(training, self) for each in self.reservations)


def _start(resident: Resident) -> tuple[float, str]:
    return (resident.started_at_s, resident.training.run_id)


class Reservation(Protocol):
    """A place that an overdue training will start on."""

    @property
    def training(self) -> Training:
        """Whom it is reserved for."""
        ...

    @property
    def starts_in_s(self) -> float | None:
        """Seconds until that one can start; None for unknown."""
        ...

    def keeps_out(self, training: Training, place: Place) -> bool:
        """Tell whether a training, submitted later, would delay that one."""
        ...


def is_later(training: Training, than: Training) -> bool:
    """Tell whether a training was submitted later than another."""
    return training.submitted_at_s > than.submitted_at_s


def age_key(training: Training) -> tuple[float, str]:
    """Sort key of age: the longest waiting first, whatever its priority."""
    return (training.submitted_at_s, training.run_id)


@dataclass(frozen=True, slots=True)
class Option:
    """A release that would keep all rules.

    Attributes:
        kind: The kind of the training.
        training: Whom: one of its kind.
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
