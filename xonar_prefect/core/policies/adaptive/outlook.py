"""The outlook: what a decision knows of those who wait and run, for one device's future."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from xonar_prefect.core import memory
from xonar_prefect.core.lookahead import Future
from xonar_prefect.core.models import Resident, Training
from xonar_prefect.core.planning import Board, Kind, Place
from xonar_prefect.core.policies.adaptive.line import Line, Waiting


class Outlook:
    """What a decision knows of those who wait and run: their weights, their lines.

    Owners share evenly: each counts once, however many trainings it has, so those of an owner with
    forty weigh a fortieth each. Trainings without an owner weigh one.

    Attributes:
        devices: Number of devices that can be used.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        running = {
            resident.training.run_id: resident.training
            for place in board.places
            for resident in place.residents
        }
        owners = Counter(t.owner for t in (*board.held, *running.values()) if t.owner is not None)
        self._weights = {owner: 1.0 / count for owner, count in owners.items()}
        self._lines: dict[str, Line] = {}
        self._numbers: dict[Kind, int] = {}
        self._loads: dict[tuple[Kind, str], int] = {}
        usable = [place.device.model for place in board.places if place.device.unavailable is None]
        self.devices = max(1, len(usable))
        self._models = sorted(set(usable))
        self._relative: dict[Kind, Mapping[str, float]] = {}
        self._means: dict[str, float] = {}

    def line(self, device_model: str) -> Line:
        """Return who waits for a device of this model."""
        line = self._lines.get(device_model)
        if line is None:
            line = Line(self._board, device_model, self.weight_of)
            self._lines[device_model] = line
        return line

    def weight_of(self, training: Training) -> float:
        """Return what a second of a training's completion time counts."""
        return 1.0 if training.owner is None else self._weights[training.owner]

    def relative_time(self, device_model: str) -> float:
        """Return how long those who wait need on a model, the mean of all models being 1."""
        if len(self._models) < 2:
            return 1.0
        if device_model not in self._means:
            known = [self._relative_times(kind, front) for kind, front in self._board.queue]
            times = [each.get(device_model, 1.0) for each in known]
            self._means[device_model] = math.fsum(times) / len(times) if times else 1.0
        return self._means[device_model]

    def waste(self, waiting: Waiting, device_model: str) -> float:
        """Return the device time that is wasted on a model that suits others better.

        Negative where this model suits it better than the others.
        """
        if len(self._models) < 2:
            return 0.0
        own = self._relative_times(waiting.kind, waiting.training).get(device_model, 1.0)
        return waiting.seconds * (1.0 - self.relative_time(device_model) / own)

    def _relative_times(self, kind: Kind, training: Training) -> Mapping[str, float]:
        known = self._relative.get(kind)
        if known is None:
            times = {
                model: max(1e-3, self._board.durations.held(training, model).seconds)
                for model in self._models
            }
            mean = math.fsum(math.log(time) for time in times.values()) / len(times)
            known = {model: time / math.exp(mean) for model, time in times.items()}
            self._relative[kind] = known
        return known

    def running(self, resident: Resident, device_model: str) -> Future:
        """Return a running training as a part of the future."""
        training = resident.training
        mib = resident.request_mib
        return Future(
            seconds=max(1e-3, self._board.durations.of_resident(resident, device_model).seconds),
            load=self._board.speeds(device_model).load_of(training),
            weight=self.weight_of(training),
            mib=None if mib is None or training.exclusive else max(mib, resident.used_mib),
        )

    def being_profiled(self, device_model: str) -> frozenset[int]:
        """Return the numbers of the kinds of which one is being profiled on such a device."""
        keys = {
            training.profile_key
            for place in self._board.places
            if place.device.model == device_model
            for training in place.unprofiled
        }
        return frozenset(
            number
            for kind, number in self._numbers.items()
            if kind.trainings[0].profile_key in keys
        )

    def coming(self, waiting: Waiting, place: Place) -> Future:
        """Return one who waits as a part of the future of a place."""
        training, kind, model = waiting.training, waiting.kind, place.device.model
        need = place.need_of(kind)
        mib = need.mib
        if not need.known and training.profile_key is not None:
            # a profile will tell; until then as many are thought to fit as there are slots
            limits = self._board.snapshot.limits
            mib = memory.capacity_mib(place.device, limits) // self._board.slots
        load = self._loads.get((kind, model))
        if load is None:
            load = self._loads[kind, model] = self._board.speeds(model).load_of(training)
        return Future(
            seconds=max(1e-3, waiting.seconds),
            load=load,
            weight=waiting.weight,
            # a gang finds its partners on all of its devices or not at all: seldom
            mib=None if training.exclusive or training.gpus > 1 else mib,
            priority=waiting.priority,
            blind=not need.known,
            kind=self._numbers.setdefault(kind, len(self._numbers)),
        )
