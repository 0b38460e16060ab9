"""The planning board: a snapshot on which trainings are placed one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from xonar_prefect.core.decisions import (
    Alternative,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.core.durations import Durations
from xonar_prefect.core.interference import InterferenceModel, SpeedTable
from xonar_prefect.core.models import (
    Resident,
    Snapshot,
    Training,
)
from xonar_prefect.core.planning import words
from xonar_prefect.core.planning.admission import Admission
from xonar_prefect.core.planning.kinds import HeldQueue, Kind, Position
from xonar_prefect.core.planning.places import Option, Place

_QUEUE_POSITION = attrgetter("priority", "submitted_at_s", "run_id")


class PassedOver(NamedTuple):
    """Why a later training was chosen for a place that a kind could have had.

    Attributes:
        before: Those of the kind that stand before this position in the queue were passed over.
        reason: Why, as a sentence.
    """

    before: Position
    reason: str


class Board:
    """What is decided so far, and what may still be.

    Every option that it offers keeps all rules, so a policy cannot break one. The order of held
    trainings and devices in the snapshot does not matter.

    Attributes:
        snapshot: What the plan is made for.
        slots: Trainings that a device may take.
        places: The devices, by index.
        queue: Held trainings that need devices and are not released or refused yet.
        admission: What the limits still admit.
        releases: Releases so far, by run id.
        refusals: Refusals so far, by run id.
        offering: The only trainings to be offered at the moment, with their kinds; None for all.
    """

    def __init__(self, snapshot: Snapshot, *, slots: int) -> None:
        self.snapshot = snapshot
        self.slots = slots
        self.places = tuple(
            Place(device, snapshot.limits, snapshot.clashes)
            for device in sorted(snapshot.devices, key=lambda device: (device.index, device.id))
        )
        self.held = sorted(snapshot.held, key=_QUEUE_POSITION)
        self.queue = HeldQueue(training for training in self.held if training.gpus > 0)
        self.offering: Sequence[tuple[Kind, Training]] | None = None
        self.admission = Admission(snapshot.limits, snapshot.host, snapshot.now_s)
        self.releases: dict[str, Release] = {}
        self.refusals: dict[str, Refuse] = {}
        self._place_by_id = {place.device.id: place for place in self.places}
        self._places_by_model: dict[str, list[Place]] = defaultdict(list)
        for place in self.places:
            self._places_by_model[place.device.model].append(place)
        self._without_device = [training for training in self.held if training.gpus == 0][::-1]
        self._passed_over: dict[Kind, PassedOver] = {}

    @cached_property
    def interference(self) -> InterferenceModel:
        """The interference model; built when somebody first asks."""
        return self.snapshot.interference or InterferenceModel.of(self.snapshot)

    @cached_property
    def durations(self) -> Durations:
        """How long trainings will still need alone."""
        return Durations(self.snapshot)

    def speeds(self, device_model: str) -> SpeedTable:
        """Return the speeds of sets of trainings on a device model."""
        return self.interference.speeds(device_model)

    @property
    def places_by_model(self) -> dict[str, list[Place]]:
        """The places of each device model."""
        return self._places_by_model

    def open_places(self) -> list[Place]:
        """Return the places with a free slot, the emptiest first, then by index."""
        places = [
            place
            for place in self.places
            if place.device.unavailable is None and len(place.residents) < self.slots
        ]
        return sorted(places, key=lambda place: len(place.residents))

    def options(self, place: Place) -> Iterator[Option]:
        """Yield what could be released to a place now, one option per kind, in queue order."""
        for kind, training in self.offered():
            option = self.option(kind, training, place)
            if option is not None:
                yield option

    def offered(self) -> Iterator[tuple[Kind, Training]]:
        """Yield who may be released now, in queue order: of each kind the first, or `offering`."""
        if self.offering is None:
            yield from self.queue
            return
        for kind, training in self.offering:
            if kind.is_held(training):
                yield kind, training

    def option(self, kind: Kind, training: Training, place: Place) -> Option | None:
        """Return the release of a training to a place (for a gang: and others), if it may be."""
        if self.admission.obstacle(training) is not None:
            return None
        if place.obstacle(kind, training, self.slots) is not None:
            return None
        places = [place] if training.gpus == 1 else self._gang_with(kind, training, place)
        if places is None:
            return None
        needs = [each.need_of(kind).mib for each in places]
        known = [mib for mib in needs if mib is not None]
        request = max(known) if len(known) == len(needs) else None
        ordered = tuple(sorted(places, key=lambda each: each.device.id))
        return Option(kind, training, ordered, request)

    def _gang_with(self, kind: Kind, training: Training, place: Place) -> list[Place] | None:
        """Return the devices a gang could take together with this one: all or none."""
        if place.residents:
            return self._gang_beside(kind, training, place)
        peers = [place]
        for peer in self._places_by_model[place.device.model]:
            if len(peers) == training.gpus:
                break
            if peer is place or peer.residents:
                continue
            if peer.obstacle(kind, training, self.slots) is None:
                peers.append(peer)
        return peers if len(peers) == training.gpus else None

    def _gang_beside(self, kind: Kind, training: Training, place: Place) -> list[Place] | None:
        """Return the devices of the residents, if all of them hold the identical set.

        Each of them holds as many devices as the gang needs, or it would be an obstacle. So it is
        enough that the devices of one of them have the same residents.
        """
        there = {resident.training.run_id for resident in place.residents}
        devices = sorted(place.residents[0].devices)
        places = [self._place_by_id.get(device) for device in devices]
        joined: list[Place] = []
        for peer in places:
            if peer is None or {r.training.run_id for r in peer.residents} != there:
                return None
            if peer.obstacle(kind, training, self.slots) is not None:
                return None
            joined.append(peer)
        return joined if len(joined) == training.gpus else None

    def slowdown(self, option: Option) -> float | None:
        """Predict the slowdown of the option's training beside others; None if alone or unknown."""
        if not option.partners:
            return None
        speeds = self.speeds(option.device_model)
        everybody = (option.training, *option.partners)
        return speeds.predict(tuple([speeds.load_of(each) for each in everybody]))

    def release(
        self,
        option: Option,
        code: ReasonCode,
        why: str,
        alternatives: tuple[Alternative, ...] = (),
    ) -> bool:
        """Release an option's training.

        Runs that need no device and stand before it in the queue are released first: they compete
        for the same limits.

        Args:
            option: The release.
            code: Why, for machines.
            why: Why, as a clause.
            alternatives: What was weighed and not chosen.

        Returns:
            False when those have used up the limits; then nothing was released for the option.
        """
        training = option.training
        self.release_without_device(before=training.queue_position)
        if self.admission.obstacle(training) is not None:
            return False
        slowdown = self.slowdown(option)
        release = Release(
            training=training,
            devices=tuple(place.device.id for place in option.places),
            code=code,
            reason=words.release(option, why, slowdown),
            request_mib=option.request_mib,
            partners=tuple(partner.run_id for partner in option.partners),
            predicted_slowdown=slowdown,
            alternatives=alternatives,
        )
        self._record(release)
        self.queue.take(option.kind, training)
        self.put(release)
        return True

    def put(self, release: Release) -> None:
        """Put a released training on its devices."""
        training = release.training
        places = [self._place_by_id[device] for device in release.devices]
        seconds = training.remaining_seconds
        if seconds is not None and places:
            seconds = self.durations.held(training, places[0].device.model).seconds
        resident = Resident(
            training=training,
            devices=release.devices,
            request_mib=release.request_mib,
            started_at_s=self.snapshot.now_s,
            remaining_seconds=seconds,
        )
        for place in places:
            place.put(resident)

    def release_without_device(self, before: Position | None = None) -> None:
        """Release the runs that need no device, as far as the limits admit them.

        Args:
            before: Only those that stand before this position in the queue.
        """
        waiting = self._without_device
        while waiting and (before is None or waiting[-1].queue_position < before):
            training = waiting.pop()
            code = self.admission.obstacle(training)
            if code is not None:
                self.admission.keep_host_for(training, code)
            else:
                self._record(
                    Release(
                        training=training,
                        devices=(),
                        code=ReasonCode.NEEDS_NO_DEVICE,
                        reason="Released at once: it needs no device.",
                    )
                )

    def _record(self, release: Release) -> None:
        self.releases[release.training.run_id] = release
        self.admission.use(release.training)

    def refuse(self, kind: Kind, code: ReasonCode, reason: str) -> None:
        """Refuse all trainings of a kind."""
        while kind.front is not None:
            training = kind.front
            self.refusals[training.run_id] = Refuse(training=training, code=code, reason=reason)
            self.queue.take(kind)

    def refuse_without_device(
        self, code: ReasonCode, why: Callable[[Training], str | None]
    ) -> None:
        """Refuse those runs without a device for which there is a reason."""
        for training in self._without_device:
            reason = why(training)
            if reason is not None:
                refuse = Refuse(training=training, code=code, reason=reason)
                self.refusals[training.run_id] = refuse
        self._without_device = [
            training for training in self._without_device if training.run_id not in self.refusals
        ]

    def passed_over(self, kind: Kind) -> PassedOver | None:
        """Return why trainings of this kind have lost a place to a later one, if they have."""
        return self._passed_over.get(kind)

    def pass_over(self, kind: Kind, chosen: Training, reason: str) -> None:
        """Note that a later training was chosen for a place that this kind could have had."""
        self._passed_over.setdefault(kind, PassedOver(chosen.queue_position, reason))
