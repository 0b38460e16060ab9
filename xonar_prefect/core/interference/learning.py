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


class Case(NamedTuple):
    """What was observed of one training beside one set of partners, however often it was seen.

    Attributes:
        at: The set.
        own: The training.
        beside: Its partners.
        logarithm: The mean logarithm of its slowdown.
        weight: How much speaks for that.
        fraction: Active fraction of the training, or what stands in for it.
        fractions: The same of its partners, sorted.
        informed: Whether all of these are known.
    """

    at: SetAt
    own: At
    beside: tuple[At, ...]
    logarithm: float
    weight: float
    fraction: float
    fractions: list[float]
    informed: bool


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
        if key is not None:
            return self.at((model, key), likeness)
        return 0.0 if likeness is None else self._of_others(model, None, likeness)

    def at(self, at: At, likeness: Likeness | None = None) -> float:
        """Return the same of a kind that has a key."""
        effect = self._known.get(at)
        if effect is None:
            others = self.k * self._of_others(*at, likeness)
            effect = (self.sums.get(at, 0.0) + others) / (self.weights.get(at, 0.0) + self.k)
            self._known[at] = effect
        return effect

    def mean_at(self, several: Sequence[At]) -> float:
        """Return the mean effect of several kinds."""
        if len(several) == 1:
            return self.at(several[0])
        return math.fsum([self.at(each) for each in several]) / max(1, len(several))

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
    cases = _cases(ordered, fractions)
    trusts = [_trust(case) for case in cases]
    costs = _sharing_costs(cases, trusts)
    left = [case.logarithm - math.log(_prior(case, costs)) for case in cases]
    means = _means(cases, left, trusts)
    left = [rest - means[case.own[0]] for case, rest in zip(cases, left, strict=True)]
    observed = frozenset(key for case in cases for _, key in (case.own, *case.beside))
    families = Families(likenesses, observed, SCALE)
    sufferers = [(case.own,) for case in cases]
    causers = [tuple(dict.fromkeys(case.beside)) for case in cases]
    suffering = Effects({}, {}, families, K_SUFFERS)
    causing = Effects({}, {}, families, K_CAUSES)
    for _ in range(SWEEPS):
        suffered = [
            rest - causing.mean_at(case.beside) for case, rest in zip(cases, left, strict=True)
        ]
        suffering = _effects(sufferers, suffered, trusts, families, K_SUFFERS)
        caused = [rest - suffering.at(case.own) for case, rest in zip(cases, left, strict=True)]
        causing = _effects(causers, caused, trusts, families, K_CAUSES)
    sets: dict[SetAt, float] = {}
    set_weights: dict[SetAt, float] = {}
    for case, rest in zip(cases, left, strict=True):
        special = rest - (suffering.at(case.own) + causing.mean_at(case.beside))
        sets[case.at] = special * case.weight / (case.weight + K_SET)
        set_weights[case.at] = case.weight
    return Lessons(costs, means, suffering, causing, sets, set_weights)


def _weight(observation: Observation, newest_s: float) -> float:
    age_s = newest_s - observation.observed_at_s
    trust = observation.steps / (observation.steps + HALF_TRUSTED_STEPS)
    return float(trust * 0.5 ** (age_s / HALF_LIFE_S))


def _trust(case: Case) -> float:
    """Return how much a set says about others: at most as much as one that is known well."""
    return min(1.0, case.weight)


def _cases(observations: Sequence[Observation], fractions: Mapping[At, float]) -> list[Case]:
    """Gather what was observed of each set: one figure, however often it was seen."""
    newest_s = max(observation.observed_at_s for observation in observations)
    totals: dict[SetAt, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for observation in observations:
        weight = _weight(observation, newest_s)
        partners = tuple(sorted(observation.partner_keys))
        sums = totals[observation.device_model, observation.profile_key, partners]
        sums[0] += weight * math.log(observation.slowdown)
        sums[1] += weight
    cases = []
    for at, (total, weight) in totals.items():
        model, key, partners = at
        own = (model, key)
        beside = tuple([(model, partner) for partner in partners])
        known = [fractions.get(each) for each in (own, *beside)]
        fraction, *others = [UNKNOWN_FRACTION if each is None else each for each in known]
        case = Case(
            at, own, beside, total / weight, weight, fraction, sorted(others), None not in known
        )
        cases.append(case)
    return cases


def _sharing_costs(cases: Iterable[Case], trusts: Iterable[float]) -> dict[str, float]:
    """Fit the sharing cost of each device model; the prior weighs `K_DEVICE` half-active pairs."""
    doubt = K_DEVICE * _HALF_ACTIVE_PAIR**2
    fitted: dict[str, list[float]] = {}
    for case, trust in zip(cases, trusts, strict=True):
        if not case.informed:
            continue
        overlap = case.fraction * mean_number_active(case.fractions)
        sums = fitted.setdefault(case.own[0], [doubt * (1.0 + FIRST_SHARING_COST), doubt])
        sums[0] += trust * overlap * (math.exp(case.logarithm) - 1.0)
        sums[1] += trust * overlap**2
    return {model: max(0.0, excess / square) - 1.0 for model, (excess, square) in fitted.items()}


def _prior(case: Case, costs: Mapping[str, float]) -> float:
    cost = costs.get(case.own[0], FIRST_SHARING_COST)
    return prior_slowdown(case.fraction, case.fractions, cost)


def _means(
    cases: Iterable[Case], left: Iterable[float], trusts: Iterable[float]
) -> dict[str, float]:
    """Return what the prior leaves over on average on each device model."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for case, rest, trust in zip(cases, left, trusts, strict=True):
        of_model = sums[case.own[0]]
        of_model[0] += trust * rest
        of_model[1] += trust
    return {model: total / (weight + K_MEAN) for model, (total, weight) in sums.items()}


def _effects(
    kinds: Iterable[Iterable[At]],
    left: Iterable[float],
    trusts: Iterable[float],
    families: Families,
    k: float,
) -> Effects:
    """Return the effects of the kinds of each case from what is left for them to explain."""
    sums: dict[At, float] = defaultdict(float)
    weights: dict[At, float] = defaultdict(float)
    for several, rest, trust in zip(kinds, left, trusts, strict=True):
        for at in several:
            sums[at] += trust * rest
            weights[at] += trust
    return Effects(dict(sums), dict(weights), families, k)
