"""What observed co-runs teach: effects in log space, each shrunk by how much speaks for it.

    log(slowdown / prior) = device model + what the training suffers + what its partners cause
                            + what is special about this very set

The first three are fitted together in a few sweeps, so that a training that was only ever seen
beside bad partners is not taken for one that suffers. A kind's effect is drawn towards what is
known of the kinds alike, and that towards nothing: `(sum + K * alike) / (n + K)`.

The constants were chosen on public measurements of pairs on a V100 that come without any active
fraction. There, over three random splits by pairs, the error on unseen pairs (RMS of the logarithm)
is 0.26 after 5 % of the pairs, 0.21 after 10 %, 0.15 after 30 % and 0.13 after 70 %.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import mul
from typing import NamedTuple

from xonar_prefect.core.interference.likeness import Families, Likeness
from xonar_prefect.core.interference.queueing import (
    FIRST_SHARING_COST,
    mean_number_active,
    prior_slowdown,
)
from xonar_prefect.core.models import Observation

K_DEVICE = 4.0
K_MEAN = 1.0
K_SUFFERS = 2.0
K_CAUSES = 1.0
K_ALIKE = 1.0
K_SET = 0.5
SCALE = 1.5
SWEEPS = 3
HALF_TRUSTED_STEPS = 10.0
HALF_LIFE_S = 30 * 86400.0
UNKNOWN_FRACTION = 0.5
_HALF_ACTIVE_PAIR = 0.25  # u * L of two half-active trainings

At = tuple[str, str]  # device model and profile key
SetAt = tuple[str, str, tuple[str, ...]]
Seen = dict[SetAt, tuple[float, float]]
"""The mean logarithm of the slowdown in each set, and its weight."""


class Case(NamedTuple):
    """What was observed of one training beside one set of partners."""

    model: str
    key: str
    partners: tuple[str, ...]
    left_over: float
    weight: float


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one direction, suffering or causing, by device model and kind.

    Attributes:
        sums: Weighted sums of what was seen of each kind.
        weights: The weights of those sums.
        families: Whom kinds are alike with.
        k: How much an effect is drawn towards that of the kinds alike.
    """

    sums: Mapping[At, float]
    weights: Mapping[At, float]
    families: Families
    k: float
    _known: dict[At, float] = field(default_factory=dict, compare=False, repr=False)
    _by_family: dict[tuple[str, str], tuple[list[float], list[float]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def of(self, model: str, key: str | None, likeness: Likeness | None = None) -> float:
        """Return the effect of a kind, from its own observations and of those alike."""
        if key is None and likeness is None:
            return 0.0
        at = (model, key or "")
        effect = self._known.get(at) if key is not None else None
        if effect is None:
            others = self._of_others(model, key, likeness)
            weight = self.weights.get(at, 0.0)
            effect = (self.sums.get(at, 0.0) + self.k * others) / (weight + self.k)
            if key is not None:
                self._known[at] = effect
        return effect

    def weight_of(self, model: str, key: str | None) -> float:
        """Return how much was observed of a kind."""
        return 0.0 if key is None else self.weights.get((model, key), 0.0)

    def _of_others(self, model: str, key: str | None, likeness: Likeness | None) -> float:
        """Return what the other kinds on this device model say, the more the more alike."""
        likeness = likeness or self.families.likenesses.get(key or "")
        if likeness is None or not self.weights:
            return 0.0
        sums, weights = self._of_family(model, likeness.family)
        alike = self.families.alike(likeness, but=key)
        weight: float = sum(map(mul, alike, weights))
        total: float = sum(map(mul, alike, sums))
        return total / (weight + K_ALIKE)

    def _of_family(self, model: str, family: str) -> tuple[list[float], list[float]]:
        """Return sums and weights of a family's members, in their order."""
        found = self._by_family.get((model, family))
        if found is None:
            members = [(model, key) for key in self.families.members(family)]
            found = (
                [self.sums.get(at, 0.0) for at in members],
                [self.weights.get(at, 0.0) for at in members],
            )
            self._by_family[model, family] = found
        return found


@dataclass(frozen=True, slots=True)
class Lessons:
    """What all observations together teach.

    Attributes:
        sharing_costs: The sharing cost of each device model.
        means: What is left over on average on each device model.
        suffering: How much kinds suffer.
        causing: How much they make others suffer.
        sets: What is special about a training beside a very set.
        set_weights: How much was observed of it.
    """

    sharing_costs: Mapping[str, float]
    means: Mapping[str, float]
    suffering: Effects
    causing: Effects
    sets: Mapping[SetAt, float]
    set_weights: Mapping[SetAt, float]


NOTHING_LEARNT = Lessons(
    {}, {}, Effects({}, {}, Families(), K_SUFFERS), Effects({}, {}, Families(), K_CAUSES), {}, {}
)


def learn(
    observations: Iterable[Observation],
    fractions: Mapping[At, float],
    likenesses: Mapping[str, Likeness],
) -> Lessons:
    """Return what these co-runs teach; their order does not matter.

    Args:
        observations: The co-runs.
        fractions: Known active fractions.
        likenesses: What kinds are compared by, by profile key.
    """
    ordered = sorted(
        observations,
        key=lambda o: (o.device_model, o.profile_key, o.partner_keys, o.slowdown, o.steps),
    )
    if not ordered:
        return NOTHING_LEARNT
    newest_s = max(observation.observed_at_s for observation in ordered)
    seen = _by_set(ordered, newest_s)
    costs = _sharing_costs(seen, fractions)
    cases = _cases(seen, fractions, costs)
    means = _means(cases)
    observed = frozenset(chain.from_iterable((case.key, *case.partners) for case in cases))
    families = Families(likenesses, observed, SCALE)
    suffering = Effects({}, {}, families, K_SUFFERS)
    causing = Effects({}, {}, families, K_CAUSES)
    for _ in range(SWEEPS):
        suffering = _suffering(cases, means, causing)
        causing = _causing(cases, means, suffering)
    sets: dict[SetAt, float] = {}
    set_weights: dict[SetAt, float] = {}
    for case in cases:
        special = case.left_over - means[case.model]
        special -= suffering.of(case.model, case.key) + mean_cause(causing, case)
        at = (case.model, case.key, case.partners)
        sets[at] = special * case.weight / (case.weight + K_SET)
        set_weights[at] = case.weight
    return Lessons(costs, means, suffering, causing, sets, set_weights)


def mean_cause(causing: Effects, case: Case) -> float:
    """Return what the partners of a case cause, on average over them."""
    effects = [causing.of(case.model, partner) for partner in case.partners]
    return math.fsum(effects) / max(1, len(effects))


def activity(
    key: str, partner_keys: Sequence[str], model: str, fractions: Mapping[At, float]
) -> tuple[float, list[float], bool]:
    """Return the fractions of a training and its partners, and whether all of them are known."""
    own = fractions.get((model, key))
    others = [fractions.get((model, partner)) for partner in partner_keys]
    known = own is not None and all(fraction is not None for fraction in others)
    return (
        UNKNOWN_FRACTION if own is None else own,
        sorted(UNKNOWN_FRACTION if fraction is None else fraction for fraction in others),
        known,
    )


def _weight(observation: Observation, newest_s: float) -> float:
    age_s = newest_s - observation.observed_at_s
    trust = observation.steps / (observation.steps + HALF_TRUSTED_STEPS)
    return float(trust * 0.5 ** (age_s / HALF_LIFE_S))


def _by_set(observations: Iterable[Observation], newest_s: float) -> Seen:
    """Gather what was observed of each set: one figure, however often it was seen."""
    totals: dict[SetAt, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for observation in observations:
        weight = _weight(observation, newest_s)
        partners = tuple(sorted(observation.partner_keys))
        sums = totals[observation.device_model, observation.profile_key, partners]
        sums[0] += weight * math.log(observation.slowdown)
        sums[1] += weight
    return {at: (total / weight, weight) for at, (total, weight) in totals.items()}


def _sharing_costs(seen: Seen, fractions: Mapping[At, float]) -> dict[str, float]:
    """Fit the sharing cost of each device model; the prior weighs `K_DEVICE` half-active pairs."""
    doubt = K_DEVICE * _HALF_ACTIVE_PAIR**2
    fitted: dict[str, list[float]] = {}
    for (model, key, partners), (logarithm, weight) in seen.items():
        own, others, known = activity(key, partners, model, fractions)
        if not known:
            continue
        overlap = own * mean_number_active(others)
        trust = _trust(weight)
        sums = fitted.setdefault(model, [doubt * (1.0 + FIRST_SHARING_COST), doubt])
        sums[0] += trust * overlap * (math.exp(logarithm) - 1.0)
        sums[1] += trust * overlap**2
    return {model: max(0.0, excess / square) - 1.0 for model, (excess, square) in fitted.items()}


def _cases(seen: Seen, fractions: Mapping[At, float], costs: Mapping[str, float]) -> list[Case]:
    """Return what the prior, with its sharing cost, leaves over of each set."""
    cases = []
    for (model, key, partners), (logarithm, weight) in seen.items():
        own, others, _ = activity(key, partners, model, fractions)
        prior = prior_slowdown(own, others, costs.get(model, FIRST_SHARING_COST))
        cases.append(Case(model, key, partners, logarithm - math.log(prior), weight))
    return cases


def _means(cases: Iterable[Case]) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for case in cases:
        trust = _trust(case.weight)
        sums[case.model][0] += trust * case.left_over
        sums[case.model][1] += trust
    return {model: total / (weight + K_MEAN) for model, (total, weight) in sums.items()}


def _trust(weight: float) -> float:
    """Return how much a set says about others: at most as much as one that is known well."""
    return min(1.0, weight)


def _suffering(
    cases: Iterable[Case],
    means: Mapping[str, float],
    causing: Effects,
) -> Effects:
    sums: dict[At, float] = defaultdict(float)
    weights: dict[At, float] = defaultdict(float)
    for case in cases:
        trust = _trust(case.weight)
        left = case.left_over - means[case.model] - mean_cause(causing, case)
        sums[case.model, case.key] += trust * left
        weights[case.model, case.key] += trust
    return Effects(dict(sums), dict(weights), causing.families, K_SUFFERS)


def _causing(
    cases: Iterable[Case],
    means: Mapping[str, float],
    suffering: Effects,
) -> Effects:
    sums: dict[At, float] = defaultdict(float)
    weights: dict[At, float] = defaultdict(float)
    for case in cases:
        trust = _trust(case.weight)
        left = case.left_over - means[case.model] - suffering.of(case.model, case.key)
        for partner in set(case.partners):
            sums[case.model, partner] += trust * left
            weights[case.model, partner] += trust
    return Effects(dict(sums), dict(weights), suffering.families, K_CAUSES)
