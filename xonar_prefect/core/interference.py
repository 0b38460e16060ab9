"""How much co-located trainings slow each other down: a queueing prior that observations correct.

**Prior.** Trainings on a device are customers of a closed network with one processor-sharing
station (the device) and a delay (their idle time). A training with active fraction `u` finds
`L` others at the station on average when it arrives, so `slowdown = 1 + (1 + e) * u * L`. Sharing
itself costs a little (context switches, caches): `e`, 0.1 at first.

**Correction**, from coarse to fine; each level explains what the coarser ones left over, and is
shrunk by `n / (n + k)`, so that few observations say little and many say all:

1. the device model: its sharing cost `e`, by ridge regression of the observed excess on `u * L`;
2. a training with others, in log space: how much it suffers (`K_SUFFERS`), then how much it makes
   others suffer (`K_CAUSES`), of which the mean over the partners counts;
3. this very set, in log space (`K_SET`).

An observation counts as `steps / (steps + HALF_TRUSTED_STEPS)` of one. Where an active fraction is
unknown, one half stands in for it on both sides, so that the levels above learn the difference:
such a slowdown is predicted only from observations of the training itself, else not at all.

The constants of 2 and 3 were chosen on public measurements of pairs on a V100 that come without any
active fraction. There, over ten random splits by pairs, the error on unseen pairs (RMS of the
logarithm) is 0.25 after a tenth of the pairs and 0.14 after 70 % of them; their mean alone leaves
0.33.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xonar_prefect.core.models import Observation, Profile, Snapshot, Training

FIRST_SHARING_COST = 0.1
K_DEVICE = 4.0
K_SUFFERS = 2.0
K_CAUSES = 1.0
K_SET = 0.5
HALF_TRUSTED_STEPS = 10.0
UNKNOWN_FRACTION = 0.5
_HALF_ACTIVE_PAIR = 0.25  # u * L of two half-active trainings


class Load(NamedTuple):
    """What interference knows of a training: its kind and its active fraction, None if unknown."""

    key: str | None
    active_fraction: float | None

    @classmethod
    def of(cls, training: Training, device_model: str) -> Load:
        """Return the load that the training is on this device model."""
        profile = training.profile_on(device_model)
        return cls(training.profile_key, None if profile is None else profile.active_fraction)


def mean_number_active(fractions: Sequence[float]) -> float:
    """Return how many of these co-located trainings wait for or hold the device on average.

    This is exact mean-value analysis in its closed form: a set A of trainings is at the device
    with a probability proportional to `|A|!` times the product of `u` over A and of `1 - u` over
    the others, so the coefficients of the product of `(1 - u) + u x` are enough: quadratic in the
    number of trainings, where the recursion over subsets is exponential.

    >>> mean_number_active([0.3])
    0.3
    >>> mean_number_active([0.5, 0.5])
    1.2
    """
    coefficients = [1.0]
    for fraction in fractions:
        stays = [c * (1.0 - fraction) for c in coefficients] + [0.0]
        joins = [0.0] + [c * fraction for c in coefficients]
        coefficients = [a + b for a, b in zip(stays, joins, strict=True)]
    weights = [math.factorial(count) * c for count, c in enumerate(coefficients)]
    return sum(count * weight for count, weight in enumerate(weights)) / sum(weights)


def prior_slowdown(
    active_fraction: float, partners: Sequence[float], sharing_cost: float = FIRST_SHARING_COST
) -> float:
    """Return the slowdown of a training beside partners with these active fractions.

    >>> prior_slowdown(0.5, [0.5], sharing_cost=0.0)
    1.25
    >>> prior_slowdown(0.5, [0.5, 0.5], sharing_cost=0.0)
    1.6
    """
    return 1.0 + (1.0 + sharing_cost) * active_fraction * mean_number_active(partners)


@dataclass(slots=True)
class _Mean:
    """A weighted mean under way."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        self.total += weight * value
        self.weight += weight

    def shrunk(self, k: float) -> float:
        """Return the mean times n / (n + k)."""
        return self.total / (self.weight + k) if self.weight else 0.0


class _Case(NamedTuple):
    """An observation on its way through the levels."""

    model: str
    victim: str
    partners: tuple[str, ...]
    left_over: float
    weight: float


@dataclass(frozen=True, slots=True)
class InterferenceModel:
    """A frozen model of who slows whom; build it with `from_observations` or `of`.

    The mappings are keyed by device model first, then by profile keys.
    """

    sharing_costs: Mapping[str, float]
    fractions: Mapping[tuple[str, str], float]
    suffers: Mapping[tuple[str, str], float]
    causes: Mapping[tuple[str, str], float]
    sets: Mapping[tuple[str, str, tuple[str, ...]], float]

    @classmethod
    def of(cls, snapshot: Snapshot) -> InterferenceModel:
        """Build the model from all that a snapshot knows."""
        if not snapshot.observations:
            return cls({}, {}, {}, {}, {})
        trainings = [*snapshot.held]
        trainings += [r.training for device in snapshot.devices for r in device.residents]
        profiles = [profile for t in trainings for profile in t.profiles.values()]
        return cls.from_observations(snapshot.observations, [*snapshot.profiles, *profiles])

    @classmethod
    def from_observations(
        cls, observations: Iterable[Observation], profiles: Iterable[Profile]
    ) -> InterferenceModel:
        """Build the model from measured co-runs and the profiles of the kinds in them.

        The order of either does not matter.
        """
        ordered = sorted(
            observations,
            key=lambda o: (o.device_model, o.profile_key, o.partner_keys, o.slowdown, o.steps),
        )
        fractions = {
            (p.device_model, p.key): p.active_fraction
            for p in profiles
            if p.active_fraction is not None
        }
        costs = _sharing_costs(ordered, fractions)
        cases = [_case(observation, fractions, costs) for observation in ordered]
        suffers: dict[tuple[str, str], _Mean] = defaultdict(_Mean)
        causes: dict[tuple[str, str], _Mean] = defaultdict(_Mean)
        sets: dict[tuple[str, str, tuple[str, ...]], _Mean] = defaultdict(_Mean)
        for case in cases:
            suffers[case.model, case.victim].add(case.left_over, case.weight)
        suffering = {at: mean.shrunk(K_SUFFERS) for at, mean in suffers.items()}
        for case in cases:
            left = case.left_over - suffering[case.model, case.victim]
            for partner in set(case.partners):
                causes[case.model, partner].add(left, case.weight)
        causing = {at: mean.shrunk(K_CAUSES) for at, mean in causes.items()}
        for case in cases:
            mean_cause = math.fsum(causing[case.model, p] for p in case.partners) / max(
                1, len(case.partners)
            )
            left = case.left_over - suffering[case.model, case.victim] - mean_cause
            sets[case.model, case.victim, case.partners].add(left, case.weight)
        very_sets = {at: mean.shrunk(K_SET) for at, mean in sets.items()}
        return cls(costs, fractions, suffering, causing, very_sets)

    def predict(self, load: Load, partners: Sequence[Load], device_model: str) -> float | None:
        """Return the slowdown of a training beside these partners, at least 1.

        Returns:
            1.0 without partners; None when an active fraction is unknown and the training was
            never observed beside anybody on this device model.
        """
        if not partners:
            return 1.0
        own = self._fraction(load, device_model)
        others = [self._fraction(partner, device_model) for partner in partners]
        informed = own is not None and all(fraction is not None for fraction in others)
        suffering = None if load.key is None else self.suffers.get((device_model, load.key))
        if not informed and suffering is None:
            return None
        prior = prior_slowdown(
            UNKNOWN_FRACTION if own is None else own,
            sorted(UNKNOWN_FRACTION if fraction is None else fraction for fraction in others),
            self.sharing_costs.get(device_model, FIRST_SHARING_COST),
        )
        keys = [partner.key for partner in partners]
        correction = suffering or 0.0
        correction += math.fsum(
            self.causes.get((device_model, key), 0.0) for key in keys if key is not None
        ) / len(keys)
        known_keys = tuple(sorted(key for key in keys if key is not None))
        if load.key is not None and len(known_keys) == len(keys):
            correction += self.sets.get((device_model, load.key, known_keys), 0.0)
        return max(1.0, prior * math.exp(correction))

    def _fraction(self, load: Load, device_model: str) -> float | None:
        if load.active_fraction is not None or load.key is None:
            return load.active_fraction
        return self.fractions.get((device_model, load.key))


def _activity(
    observation: Observation, fractions: Mapping[tuple[str, str], float]
) -> tuple[float, list[float], bool]:
    """Return the fractions of the victim and its partners, and whether all of them are known."""
    model = observation.device_model
    own = fractions.get((model, observation.profile_key))
    others = [fractions.get((model, key)) for key in observation.partner_keys]
    known = own is not None and all(fraction is not None for fraction in others)
    return (
        UNKNOWN_FRACTION if own is None else own,
        sorted(UNKNOWN_FRACTION if fraction is None else fraction for fraction in others),
        known,
    )


def _weight(observation: Observation) -> float:
    return observation.steps / (observation.steps + HALF_TRUSTED_STEPS)


def _sharing_costs(
    observations: Sequence[Observation], fractions: Mapping[tuple[str, str], float]
) -> dict[str, float]:
    """Fit the sharing cost of each device model; the prior weighs `K_DEVICE` half-active pairs."""
    doubt = K_DEVICE * _HALF_ACTIVE_PAIR**2
    fitted: dict[str, list[float]] = {}
    for observation in observations:
        own, others, known = _activity(observation, fractions)
        if not known:
            continue
        overlap = own * mean_number_active(others)
        sums = fitted.setdefault(
            observation.device_model, [doubt * (1.0 + FIRST_SHARING_COST), doubt]
        )
        sums[0] += _weight(observation) * overlap * (observation.slowdown - 1.0)
        sums[1] += _weight(observation) * overlap**2
    return {model: max(0.0, excess / square) - 1.0 for model, (excess, square) in fitted.items()}


def _case(
    observation: Observation,
    fractions: Mapping[tuple[str, str], float],
    costs: Mapping[str, float],
) -> _Case:
    own, others, _ = _activity(observation, fractions)
    cost = costs.get(observation.device_model, FIRST_SHARING_COST)
    return _Case(
        observation.device_model,
        observation.profile_key,
        tuple(sorted(observation.partner_keys)),
        math.log(observation.slowdown) - math.log(prior_slowdown(own, others, cost)),
        _weight(observation),
    )
