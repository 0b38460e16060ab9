"""How long trainings will still need alone: as reported, as seen of their kind, or on average.

A duration belongs to a device model. Between models it is scaled by the ratio of the step times in
the training's own profiles; where one is missing, by the mean ratio of the kinds that have both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from xonar_prefect.core.models import (
    Profile,
    Resident,
    Snapshot,
    Training,
)

LEAST_SHARE_LEFT = 0.1
"""Of its kind's mean duration, what a training that reports no progress is thought to have left
when it has run for longer than that."""


class Duration(NamedTuple):
    """A time that a training will still need alone.

    Attributes:
        seconds: The time.
        known: Whether it rests on this training or its kind, not on the pool's mean alone.
    """

    seconds: float
    known: bool


class Durations:
    """The durations of one snapshot's trainings; each question is answered from what is known."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._ratios: dict[tuple[str, str], float] = {}

    @cached_property
    def pool_mean(self) -> float:
        """The mean duration where nothing else is known; any figure where nobody's is."""
        snapshot = self._snapshot
        known = [t.remaining_seconds for t in snapshot.held if t.remaining_seconds is not None]
        known = known or list(snapshot.durations.values())
        known = known or [
            resident.remaining_seconds
            for device in snapshot.devices
            for resident in device.residents
            if resident.remaining_seconds is not None
        ]
        return max(1.0, math.fsum(known) / len(known)) if known else 600.0

    def held(self, training: Training, device_model: str) -> Duration:
        """Return how long a held training would need alone on a device model."""
        seconds = training.remaining_seconds
        if seconds is not None:
            return Duration(seconds * self.slower_than_fastest(training, device_model), known=True)
        mean = self._mean_of_kind(training, device_model)
        if mean is not None:
            return Duration(mean, known=True)
        return Duration(self.pool_mean, known=False)

    def of_resident(self, resident: Resident, device_model: str) -> Duration:
        """Return how long a running training will still need, were it alone from now on."""
        if resident.remaining_seconds is not None:
            return Duration(resident.remaining_seconds, known=True)
        mean = self._mean_of_kind(resident.training, device_model)
        if mean is None:
            return Duration(self.pool_mean, known=False)
        elapsed = max(0.0, self._snapshot.now_s - resident.started_at_s)
        return Duration(max(mean - elapsed, LEAST_SHARE_LEFT * mean), known=True)

    def slower_than_fastest(self, training: Training, device_model: str) -> float:
        """Return the time here over the time on the fastest model that it has a profile of."""
        if len(training.profiles) == 1 and device_model in training.profiles:
            return 1.0
        timed = {
            model: profile.step_seconds
            for model, profile in training.profiles.items()
            if profile.step_seconds is not None
        }
        if not timed:
            return 1.0
        fastest = min(timed, key=lambda model: (timed[model], model))
        here = timed.get(device_model)
        if here is not None:
            return here / timed[fastest]
        return self._mean_ratio(device_model, fastest)

    def _mean_of_kind(self, training: Training, device_model: str) -> float | None:
        key = training.profile_key
        durations = self._snapshot.durations
        if key is None or not durations:
            return None
        seconds = durations.get((key, device_model))
        if seconds is not None:
            return seconds
        elsewhere = sorted(model for kind, model in durations if kind == key)
        if not elsewhere:
            return None
        other = elsewhere[0]
        return durations[key, other] * self._ratio(training.profiles, device_model, other)

    def _ratio(self, profiles: Mapping[str, Profile], here: str, there: str) -> float:
        own = _step_ratio(profiles, here, there)
        return self._mean_ratio(here, there) if own is None else own

    def _mean_ratio(self, here: str, there: str) -> float:
        """Return the mean ratio of step times of the kinds that have both; 1 where none has."""
        if (here, there) not in self._ratios:
            self._ratios[here, there] = _geometric_mean(
                ratio
                for profiles in self._profiles_by_kind.values()
                if (ratio := _step_ratio(profiles, here, there)) is not None
            )
        return self._ratios[here, there]

    @cached_property
    def _profiles_by_kind(self) -> Mapping[str, Mapping[str, Profile]]:
        found: dict[str, dict[str, Profile]] = defaultdict(dict)
        for profile in self._snapshot.profiles:
            found[profile.key][profile.device_model] = profile
        for training in self._snapshot.held:
            if training.profile_key is not None:
                found[training.profile_key].update(training.profiles)
        return {key: found[key] for key in sorted(found)}


def _step_ratio(profiles: Mapping[str, Profile], here: str, there: str) -> float | None:
    first, second = profiles.get(here), profiles.get(there)
    if first is None or second is None:
        return None
    if first.step_seconds is None or second.step_seconds is None:
        return None
    return first.step_seconds / second.step_seconds


def _geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else 1.0
