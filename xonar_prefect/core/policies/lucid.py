"""The pairing rule of Lucid (Hu et al., ASPLOS 2023), as far as it is publicly described.

Least device time first. A training may join another if both need the same number of devices, the
memory fits, and their share scores add up to at most 2; a training's score is 0, 1 or 2 as its
average speed beside others is at least 0.95, at least 0.85, or lower. At most two share a device.

Where a kind was never seen beside others, its average speed is what the interference model expects
beside a training of which nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import Decision, ReasonCode
from xonar_prefect.core.interference import Load
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.planning import Board, Choice, Option, Place, each_place, plan

MOST_SCORE = 2
_TINY, _MEDIUM = 0.95, 0.85


def share_score(average_speed: float) -> int:
    """Return the score of a training that is this fast beside others, 1 being as fast as alone.

    >>> share_score(0.97), share_score(0.9), share_score(0.5)
    (0, 1, 2)
    """
    return 0 if average_speed >= _TINY else 1 if average_speed >= _MEDIUM else 2


@dataclass(frozen=True, slots=True)
class Lucid:
    """Joins trainings whose share scores are low together, the shortest first."""

    name: str = "lucid"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, each_place(_choose))


def _choose(board: Board, place: Place) -> Choice | None:
    model = place.device.model
    if len(place.residents) > 1:
        reason = f"{place.label} has two trainings, and no more than two share a device here."
        place.kept_free = (ReasonCode.BETTER_ALONE, reason)
        return None

    def device_time(option: Option) -> tuple[int, float]:
        training = option.training
        return (training.priority, board.durations.held(training, model).seconds * training.gpus)

    allowed = [option for option in board.options(place) if _score(board, option) <= MOST_SCORE]
    if not allowed:
        scores = [share_score(_average_speed(board, r.training, model)) for r in place.residents]
        if scores:
            reason = (
                f"{place.label} takes no partner that fits: the share score of the one there is "
                f"{scores[0]}, and together they would exceed {MOST_SCORE}."
            )
            place.kept_free = (ReasonCode.BETTER_ALONE, reason)
        return None
    option = min(allowed, key=device_time)
    why = "least device time of those that fit"
    if option.partners:
        why += f", and the share scores add up to {_score(board, option)}"
    code = ReasonCode.LEAST_INTERFERENCE if option.partners else ReasonCode.FIRST_ON_DEVICE
    return Choice(option=option, code=code, why=why)


def _score(board: Board, option: Option) -> int:
    if not option.partners:
        return 0
    model = option.device_model
    return sum(
        share_score(_average_speed(board, training, model))
        for training in (option.training, *option.partners)
    )


def _average_speed(board: Board, training: Training, device_model: str) -> float:
    load = Load.of(training, device_model)
    return 1.0 / board.interference.expect(load, [Load(None, None)], device_model)
