"""The placement rule of Horus (Yeung et al.), after its public simulator.

First come, first served; a training goes where this is lowest: 1.3 times the share of the device's
memory that would be used, plus how far the utilisations add up to something other than 100 %
(counted 1.6-fold above), plus the number of trainings already there. Utilisation is the active
fraction; where it is unknown, one half stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import Alternative, Decision, ReasonCode
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.planning import Board, Choice, Option, carry_out, plan
from xonar_prefect.core.planning.words import MOST_ALTERNATIVES

MEMORY_WEIGHT = 1.3
OVERLOAD_WEIGHT = 1.6
UNKNOWN_UTILISATION = 0.5


def placement_score(memory_share: float, utilisation: float, trainings_there: int) -> float:
    """Return the cost of a placement; the lowest wins.

    Args:
        memory_share: Share of the device's memory in use with the training.
        utilisation: Sum of the utilisations with the training, 1 being the whole device.
        trainings_there: Trainings already on the device.

    >>> placement_score(0.5, 1.0, 1), round(placement_score(0.5, 1.5, 1), 2)
    (1.65, 2.45)
    """
    mismatch = abs(utilisation - 1.0)
    if utilisation > 1.0:
        mismatch *= OVERLOAD_WEIGHT
    return MEMORY_WEIGHT * memory_share + mismatch + trainings_there


@dataclass(frozen=True, slots=True)
class Horus:
    """Places the first in the queue where memory and utilisation fit best."""

    name: str = "horus"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, _fill)


def _fill(board: Board) -> None:
    hopeless = set()
    placed = True
    while placed:
        placed = False
        for kind, training in tuple(board.offered()):
            if kind in hopeless:
                continue
            options = [
                option
                for place in board.open_places()
                if (option := board.option(kind, training, place)) is not None
            ]
            if options:
                carry_out(board, _choose(options))
                placed = True
                break
            hopeless.add(kind)  # what is placed later leaves no more room than there is now


def _choose(options: list[Option]) -> Choice:
    ranked = sorted((_score(option), place, option) for place, option in enumerate(options))
    score, _, best = ranked[0]
    return Choice(
        option=best,
        code=ReasonCode.LEAST_COST if best.partners else ReasonCode.FIRST_ON_DEVICE,
        why=f"first in the queue that fits, and its score of {score:.2f} is lowest here",
        rejected=tuple(
            Alternative(
                candidate=option.training.name,
                device=option.places[0].device.id,
                code=ReasonCode.BETTER_PARTNER_CHOSEN,
                reason=f"On {option.places[0].label} its score would be {other:.2f}.",
            )
            for other, _, option in ranked[1 : 1 + MOST_ALTERNATIVES]
        ),
    )


def _score(option: Option) -> float:
    place = option.places[0]
    total = place.device.memory_mib
    used = total - place.available_mib + (option.request_mib or place.available_mib)
    trainings = (option.training, *option.partners)
    utilisation = sum(_utilisation(training, option.device_model) for training in trainings)
    return placement_score(used / total, utilisation, len(option.partners))


def _utilisation(training: Training, device_model: str) -> float:
    profile = training.profile_on(device_model)
    known = None if profile is None else profile.active_fraction
    return UNKNOWN_UTILISATION if known is None else known
