"""The rule of the Xonar paper (Shin et al., IEEE CLOUD 2022).

With r = active / idle, the partner of a running training is the one with the smallest
`|r_running * r_candidate - 1|` among those that fit; the first training of an empty device is the
first in the queue that fits. What the paper leaves open is decided so:

- Never idle (r infinite): the product is infinite, so all busy candidates tie and the least active
  of them wins. Beside a candidate that is never active the product is undefined; the rule means
  "the active fractions add up to one", which they do, so the score is 0.
- Active fraction unknown, of either: ranked after everybody whose score is known, in queue order.
- More than one resident: they count as one training that is active while any of them is, as if
  they were independent.
- Ties go to the one that fills the device better without exceeding it, then to queue order.
- Nothing fits: the slot stays free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from xonar_prefect.core.decisions import Alternative, Decision, ReasonCode
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.planning import (
    Board,
    Choice,
    Option,
    Place,
    each_place,
    first_in_queue,
    plan,
)
from xonar_prefect.core.planning.words import MOST_ALTERNATIVES, percent, quoted


def active_to_idle_ratio(active_fraction: float) -> float:
    """Return the paper's r; infinite for a training that is never idle."""
    idle_fraction = 1.0 - active_fraction
    return math.inf if idle_fraction <= 0.0 else active_fraction / idle_fraction


def complement_score(running: float, candidate: float) -> float:
    """Return |r_running * r_candidate - 1| of two active fractions; 0 is a perfect complement.

    >>> complement_score(0.75, 0.25)
    0.0
    >>> complement_score(1.0, 0.5), complement_score(1.0, 0.0)
    (inf, 0.0)
    """
    ratios = (active_to_idle_ratio(running), active_to_idle_ratio(candidate))
    if math.inf in ratios and 0.0 in ratios:
        return 0.0
    return abs(ratios[0] * ratios[1] - 1.0)


def joint_active_fraction(fractions: Iterable[float | None]) -> float | None:
    """Return the share of time in which any of some trainings is active; None if one is unknown.

    >>> joint_active_fraction([0.5, 0.5]), joint_active_fraction([0.5, None])
    (0.75, None)
    """
    idle = 1.0
    for fraction in fractions:
        if fraction is None:
            return None
        idle *= 1.0 - fraction
    return 1.0 - idle


def _active_fraction(training: Training, device_model: str) -> float | None:
    profile = training.profile_on(device_model)
    return None if profile is None else profile.active_fraction


@dataclass(frozen=True, slots=True)
class _Weighed:
    """An option with its score."""

    option: Option
    candidate: float | None
    running: float | None

    @property
    def score(self) -> float | None:
        if self.candidate is None or self.running is None:
            return None
        return complement_score(self.running, self.candidate)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key; queue order decides among equals."""
        if self.candidate is None or self.running is None:
            return (True, 0.0, 0.0)
        score = complement_score(self.running, self.candidate)
        return (False, score, abs(self.running + self.candidate - 1.0))

    @property
    def words(self) -> str:
        """How well it fits, as a clause."""
        if self.score is None or self.candidate is None or self.running is None:
            return "first in the queue that fits, as not both active fractions are known"
        return (
            f"{percent(self.candidate)} active fits its {percent(self.running)} "
            f"(|r·r' - 1| = {self.score:.2f})"
        )

    @property
    def briefly(self) -> str:
        """Its score, as a clause that follows a name."""
        if self.score is None or self.candidate is None:
            return "unknown"
        return f"{self.score:.2f} ({percent(self.candidate)} active)"


@dataclass(frozen=True, slots=True)
class Complementary:
    """Joins the training whose active time best fits the idle time of what runs already."""

    name: str = "complementary"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, each_place(_choose))


def _choose(board: Board, place: Place) -> Choice | None:
    if not place.residents:
        return first_in_queue(board, place)
    model = place.device.model
    running = joint_active_fraction(
        _active_fraction(resident.training, model) for resident in place.residents
    )
    weighed = sorted(
        (
            _Weighed(option, _active_fraction(option.training, model), running)
            for option in board.options(place)
        ),
        key=lambda each: each.rank,
    )
    if not weighed:
        return None
    best, *others = weighed
    known = best.score is not None
    by_option = {id(each.option): each for each in others}
    name = best.option.training.name
    beside = quoted(best.option.partners)

    def verdict(option: Option) -> str:
        lost = by_option[id(option)]
        return (
            f"'{name}' complements {beside} on {place.label} better: its |r·r' - 1| is "
            f"{best.briefly}, that of this training {lost.briefly}."
        )

    position = best.option.training.queue_position
    return Choice(
        option=best.option,
        code=ReasonCode.COMPLEMENTS_PARTNER if known else ReasonCode.FITS_BESIDE_PARTNER,
        why=best.words,
        rejected=tuple(
            _alternative(board, each, place, best) for each in others[:MOST_ALTERNATIVES]
        ),
        passed_over=tuple(
            each.option for each in others if each.option.training.queue_position < position
        ),
        verdict=verdict,
    )


def _alternative(board: Board, lost: _Weighed, place: Place, best: _Weighed) -> Alternative:
    training = lost.option.training
    return Alternative(
        candidate=training.name,
        device=place.device.id,
        code=ReasonCode.BETTER_PARTNER_CHOSEN,
        reason=(
            f"'{training.name}' has |r·r' - 1| = {lost.briefly}, "
            f"'{best.option.training.name}' {best.briefly}."
        ),
        predicted_slowdown=board.slowdown(lost.option),
    )
