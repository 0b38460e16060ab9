"""Says in sentences what was weighed, and how it came out."""

from __future__ import annotations

from xonar_prefect.core.decisions import Alternative, ReasonCode
from xonar_prefect.core.planning import Board, Choice, Option, Place
from xonar_prefect.core.planning.words import MOST_ALTERNATIVES, quoted
from xonar_prefect.core.policies.adaptive.weighing import Verdict, Weighed

_SUM = "the expected sum of completion times"


def chosen(board: Board, place: Place, verdict: Verdict) -> Choice:
    """Return the choice of the best who was weighed."""
    best = verdict.ranked[0]
    others = verdict.ranked[1:]
    costs = {each.waiting.training.run_id: each.cost for each in others}
    name = best.waiting.training.name

    def lost(option: Option) -> str:
        price = costs.get(option.training.run_id)
        if price is None:
            return (
                f"'{name}', of the same kind, has less left to do, so it comes first on "
                f"{place.label}."
            )
        return (
            f"On {place.label} '{name}' leaves {_SUM} at {_seconds(best.cost)}, this training at "
            f"{_seconds(price)}."
        )

    position = best.waiting.training.queue_position
    passed_over = [each.option for each in others]
    front = best.option.kind.front
    if front is not None and front is not best.option.training:
        passed_over.append(
            Option(best.option.kind, front, best.option.places, best.option.request_mib)
        )
    return Choice(
        option=best.option,
        code=ReasonCode.LEAST_COMPLETION_TIME,
        why=_why(verdict, place),
        rejected=_rejected(board, place, verdict) if board.snapshot.explained else (),
        passed_over=tuple(o for o in passed_over if o.training.queue_position < position),
        verdict=lost,
    )


def kept_free(place: Place, verdict: Verdict) -> tuple[ReasonCode, str] | None:
    """Return why a slot is left free, as code and sentence; None where nobody fits anyway."""
    there = quoted([resident.training for resident in place.residents])
    drained = verdict.drained
    if not place.residents:
        return None
    if drained is not None and (verdict.alone is None or drained[0] <= verdict.alone):
        name = drained[1].training.name
        reason = (
            f"{place.label} is kept free beside {there} for '{name}', which needs an empty device: "
            f"{_SUM} is then {_seconds(drained[0])}{_best_partner(verdict)}."
        )
        return ReasonCode.DEVICE_KEPT_FREE, reason
    if not verdict.ranked or verdict.alone is None:
        return None
    reason = (
        f"{there} on {place.label} better stays alone for now: {_SUM} is then "
        f"{_seconds(verdict.alone)}{_best_partner(verdict)}."
    )
    return ReasonCode.BETTER_ALONE, reason


def _best_partner(verdict: Verdict) -> str:
    if not verdict.ranked:
        return ""
    best = verdict.ranked[0]
    return f", with '{best.waiting.training.name}' there {_seconds(best.cost)}"


def _why(verdict: Verdict, place: Place) -> str:
    best = verdict.ranked[0]
    others = []
    if len(verdict.ranked) > 1:
        second = verdict.ranked[1]
        others.append(f"{_seconds(second.cost)} with '{second.waiting.training.name}'")
    if verdict.alone is not None:
        there = quoted([resident.training for resident in place.residents])
        others.append(f"{_seconds(verdict.alone)} if {there} stayed alone")
    if not others:
        return "the only one that may start here now"
    return f"{_SUM} is {_seconds(best.cost)}, against {' and '.join(others)}"


def _rejected(board: Board, place: Place, verdict: Verdict) -> tuple[Alternative, ...]:
    best = verdict.ranked[0]
    others = verdict.ranked[1 : MOST_ALTERNATIVES + 1]
    found = [(each.cost, _alternative(board, place, each, best)) for each in others]
    if verdict.alone is not None:
        there = quoted([resident.training for resident in place.residents])
        found.append(
            (
                verdict.alone,
                Alternative(
                    candidate="alone",
                    device=place.device.id,
                    code=ReasonCode.BETTER_PARTNER_CHOSEN,
                    reason=f"If {there} stayed alone, {_SUM} would be {_seconds(verdict.alone)}.",
                ),
            )
        )
    found.sort(key=lambda each: each[0])
    return tuple(alternative for _, alternative in found[:MOST_ALTERNATIVES])


def _alternative(board: Board, place: Place, lost: Weighed, best: Weighed) -> Alternative:
    name = lost.waiting.training.name
    return Alternative(
        candidate=name,
        device=place.device.id,
        code=ReasonCode.BETTER_PARTNER_CHOSEN,
        reason=(
            f"With '{name}' {_SUM} would be {_seconds(lost.cost)}, "
            f"with '{best.waiting.training.name}' it is {_seconds(best.cost)}."
        ),
        predicted_slowdown=board.slowdown(lost.option),
    )


def _seconds(value: float) -> str:
    return f"{value:.0f} s"
