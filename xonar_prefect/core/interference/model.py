"""The model of who slows whom: the queueing prior, corrected by what was observed.

From coarse to fine: the sharing cost of the device model, what a training suffers and its partners
cause with others (drawn towards kinds alike), this very set; see `learning`. Where an active
fraction is unknown, one half stands in for it on both sides, so that the levels above learn the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xonar_prefect.core.interference.learning import (
    K_CAUSES,
    K_SET,
    K_SUFFERS,
    NOTHING_LEARNT,
    UNKNOWN_FRACTION,
    At,
    Lessons,
    learn,
)
from xonar_prefect.core.interference.likeness import likeness_of
from xonar_prefect.core.interference.load import Load
from xonar_prefect.core.interference.part import Part, is_known
from xonar_prefect.core.interference.queueing import FIRST_SHARING_COST, prior_slowdown
from xonar_prefect.core.interference.speeds import SpeedTable
from xonar_prefect.core.models import (
    Observation,
    Profile,
    Snapshot,
)

SPREAD_OF_KIND = 0.15
"""Spread, as a standard deviation of the logarithm, of what kinds suffer or cause, at first."""
SPREAD_OF_SET = 0.12
"""The same of what is special about a set."""


@dataclass(frozen=True, slots=True)
class InterferenceModel:
    """A frozen model of who slows whom; build it with `from_observations` or `of`.

    Attributes:
        fractions: Known active fractions by device model and profile key.
        lessons: What was learnt from co-runs.
    """

    fractions: Mapping[At, float]
    lessons: Lessons
    _tables: dict[str, SpeedTable] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, snapshot: Snapshot) -> InterferenceModel:
        """Build the model from all that a snapshot knows."""
        if not snapshot.observations:
            return cls({}, NOTHING_LEARNT)
        fractions, parameters = _known_of_kinds(snapshot)
        return cls._learnt(snapshot.observations, fractions, parameters)

    @classmethod
    def from_observations(
        cls,
        observations: Iterable[Observation],
        profiles: Iterable[Profile],
        parameters: Mapping[str, Mapping[str, str]] | None = None,
    ) -> InterferenceModel:
        """Build the model; the order of its sources does not matter.

        Args:
            observations: Measured co-runs.
            profiles: Profiles of the kinds in them.
            parameters: What shapes the work of these kinds, by profile key.
        """
        return cls._learnt(observations, _fractions_of(profiles), parameters or {})

    @classmethod
    def _learnt(
        cls,
        observations: Iterable[Observation],
        fractions: Mapping[At, float],
        parameters: Mapping[str, Mapping[str, str]],
    ) -> InterferenceModel:
        known = {key: likeness_of(values) for key, values in parameters.items()}
        likenesses = {key: likeness for key, likeness in known.items() if likeness is not None}
        return cls(fractions, learn(observations, fractions, likenesses))

    def predict(self, load: Load, partners: Sequence[Load], device_model: str) -> float | None:
        """Return the slowdown of a training beside these partners, at least 1.

        Returns:
            1.0 without partners; None when an active fraction is unknown and the training was
            never observed beside anybody on this device model.
        """
        part, parts = self._parts(load, partners, device_model)
        return self.slowdown(part, parts, device_model) if is_known(part, parts) else None

    def expect(self, load: Load, partners: Sequence[Load], device_model: str) -> float:
        """Return the same, or the best guess where nothing is known of these trainings."""
        return self.slowdown(*self._parts(load, partners, device_model), device_model)

    def part(self, load: Load, device_model: str) -> Part:
        """Return what is expected of a training beside whomever."""
        fraction = self._fraction(load, device_model)
        lessons = self.lessons
        return Part(
            key=load.key,
            fraction=UNKNOWN_FRACTION if fraction is None else fraction,
            informed=fraction is not None,
            seen=lessons.suffering.weight_of(device_model, load.key) > 0,
            suffers=lessons.suffering.of(device_model, load.key, load.likeness),
            causes=lessons.causing.of(device_model, load.key, load.likeness),
        )

    def slowdown(self, part: Part, partners: Sequence[Part], device_model: str) -> float:
        """Return the slowdown that is expected of a training beside these partners."""
        if not partners:
            return 1.0
        lessons = self.lessons
        prior = prior_slowdown(
            part.fraction,
            sorted([partner.fraction for partner in partners]),
            lessons.sharing_costs.get(device_model, FIRST_SHARING_COST),
        )
        correction = lessons.means.get(device_model, 0.0) + part.suffers
        correction += math.fsum([partner.causes for partner in partners]) / len(partners)
        at = _set_at(part, partners, device_model) if lessons.sets else None
        if at is not None:
            correction += lessons.sets.get(at, 0.0)
        return max(1.0, prior * math.exp(correction))

    def speeds(self, device_model: str) -> SpeedTable:
        """Return the speeds of sets of trainings on a device model, by the same expectation."""
        table = self._tables.get(device_model)
        if table is None:
            table = self._tables[device_model] = SpeedTable(self, device_model)
        return table

    def spread(self, load: Load, partners: Sequence[Load], device_model: str) -> float:
        """Return the uncertainty of a prediction, a standard deviation of its logarithm."""
        if not partners:
            return 0.0
        lessons = self.lessons
        suffered = lessons.suffering.weight_of(device_model, load.key)
        caused = min(lessons.causing.weight_of(device_model, each.key) for each in partners)
        at = _set_at(load, partners, device_model)
        together = 0.0 if at is None else lessons.set_weights.get(at, 0.0)
        of_kinds = K_SUFFERS / (suffered + K_SUFFERS) + K_CAUSES / (caused + K_CAUSES)
        of_set = K_SET / (together + K_SET)
        # what is known of the very set leaves nothing to doubt in its parts
        return math.sqrt(of_set * (of_kinds * SPREAD_OF_KIND**2 + SPREAD_OF_SET**2))

    def _parts(
        self, load: Load, partners: Sequence[Load], device_model: str
    ) -> tuple[Part, list[Part]]:
        return self.part(load, device_model), [self.part(each, device_model) for each in partners]

    def _fraction(self, load: Load, device_model: str) -> float | None:
        if load.active_fraction is not None or load.key is None:
            return load.active_fraction
        return self.fractions.get((device_model, load.key))


class KeptModel:
    """The model of one snapshot after the other, made anew only where there is something new.

    With thousands of observations learning takes longer than deciding, and what a model has worked
    out of sets of trainings is good for the next decision too.
    """

    def __init__(self) -> None:
        self._from: tuple[object, ...] = ()
        self._model = InterferenceModel({}, NOTHING_LEARNT)

    def of(self, snapshot: Snapshot) -> InterferenceModel:
        """Return what `InterferenceModel.of` would build."""
        seen = snapshot.observations
        made_from = (seen, *_known_of_kinds(snapshot)) if seen else ()
        if made_from != self._from:
            self._from, self._model = made_from, InterferenceModel.of(snapshot)
        return self._model


def _known_of_kinds(
    snapshot: Snapshot,
) -> tuple[dict[At, float], dict[str, Mapping[str, str]]]:
    """Return what is known of kinds: their active fractions, and what shapes their work."""
    running = [r.training for device in snapshot.devices for r in device.residents]
    kinds = {training.traits: training for training in (*snapshot.held, *running)}.values()
    profiles = [profile for kind in kinds for profile in kind.profiles.values()]
    parameters = {kind.profile_key: kind.parameters for kind in kinds if kind.profile_key}
    return _fractions_of([*snapshot.profiles, *profiles]), parameters


def _fractions_of(profiles: Iterable[Profile]) -> dict[At, float]:
    return {
        (p.device_model, p.key): p.active_fraction
        for p in profiles
        if p.active_fraction is not None
    }


def _set_at(
    load: Load | Part, partners: Sequence[Load | Part], device_model: str
) -> tuple[str, str, tuple[str, ...]] | None:
    keys = [partner.key for partner in partners if partner.key is not None]
    if load.key is None or len(keys) < len(partners):
        return None
    return (device_model, load.key, tuple(sorted(keys)))
