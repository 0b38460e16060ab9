"""How a plan is made: refusals, the longest waiting, empty devices, partners, the rest."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from xonar_prefect.core.decisions import (
    Alternative,
    Decision,
    Hold,
    ReasonCode,
    Release,
)
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.planning import words
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.children import serve_waited_on
from xonar_prefect.core.planning.holds import decisions_of
from xonar_prefect.core.planning.places import Option, Place
from xonar_prefect.core.planning.refusals import refuse_impossible
from xonar_prefect.core.planning.waiting import serve_longest_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a policy chose for a free place.

    Attributes:
        option: The release.
        code: Why, for machines.
        why: Why, as a clause: "62 % active fits its 35 %".
        rejected: What was weighed and not chosen, ranked.
        passed_over: Options of earlier trainings that were not chosen.
        verdict: Says in a sentence why an option of `passed_over` was not chosen.
    """

    option: Option
    code: ReasonCode
    why: str
    rejected: tuple[Alternative, ...] = ()
    passed_over: tuple[Option, ...] = ()
    verdict: Callable[[Option], str] = lambda _: "Another training was chosen."


Choose: TypeAlias = Callable[[Board, Place], Choice | None]
"""Choose for a free place, or None to leave it free. The place is empty or has residents."""

Fill: TypeAlias = Callable[[Board], None]
"""Fill the open places of a board with what it offers, as far as a policy wants to."""


def first_in_queue(board: Board, place: Place) -> Choice | None:
    """Choose the first training in the queue that fits."""
    option = next(board.options(place), None)
    if option is None:
        return None
    beside = bool(option.partners)
    return Choice(
        option=option,
        code=ReasonCode.FITS_BESIDE_PARTNER if beside else ReasonCode.FIRST_ON_DEVICE,
        why="first in the queue that fits",
    )


def plan(snapshot: Snapshot, fill: Fill, *, share: bool = True) -> tuple[Decision, ...]:
    """Decide about every held training, in queue order.

    Args:
        snapshot: All that may be known. Where nothing is to be explained, nobody is told to hold.
        fill: The policy's way to fill places; see `each_place`.
        share: Whether two trainings may ever be on one device.
    """
    limits = snapshot.limits
    most = limits.max_trainings_per_gpu if share else 1
    board = Board(snapshot, slots=1 if limits.observe_only else most)
    refuse_impossible(board)
    _fill(board, fill)
    if not (snapshot.explained or limits.observe_only):
        return (*board.refusals.values(), *board.releases.values())
    decisions = decisions_of(board)
    if limits.observe_only and most > 1:
        board.slots = most
        _fill(board, fill)
        for run_id, release in board.releases.items():
            if isinstance(decisions[run_id], Hold):
                decisions[run_id] = _only_observed(release)
    return tuple(decisions.values())


def _fill(board: Board, fill: Fill) -> None:
    serve_longest_waiting(board, fill)
    serve_waited_on(board)
    fill(board)
    board.release_without_device()


def _only_observed(release: Release) -> Hold:
    would = release.reason.removeprefix("Released").removesuffix(".")
    return Hold(
        training=release.training,
        code=ReasonCode.OBSERVE_ONLY,
        reason=f"This worker only observes; otherwise released{would}.",
        alternatives=release.alternatives,
    )


def each_place(choose: Choose) -> Fill:
    """Return the rule that asks for each free slot in turn, emptiest devices first."""

    def fill(board: Board) -> None:
        free = [_entry(place) for place in board.open_places()]
        heapq.heapify(free)
        places = {place.device.id: place for place in board.places}
        while free:
            residents, _, device = heapq.heappop(free)
            place = places[device]
            if len(place.residents) != residents:
                continue  # has been filled since; it was put back with its new count
            choice = choose(board, place)
            if choice is None:
                continue  # what is decided later leaves no more room here than there is now
            released = carry_out(board, choice)
            for each in choice.option.places if released else (place,):
                if len(each.residents) < board.slots:
                    heapq.heappush(free, _entry(each))

    return fill


def _entry(place: Place) -> tuple[int, int, str]:
    return (len(place.residents), place.device.index, place.device.id)


def carry_out(board: Board, choice: Choice) -> bool:
    """Release what was chosen; return False where a limit was used up before its turn."""
    option = choice.option
    why = choice.why
    if board.offering is not None:
        waited = board.snapshot.now_s - option.training.submitted_at_s
        most = board.snapshot.limits.max_wait_seconds
        why = f"waited {waited:.0f} s, longer than {most:g} s, so it comes first; {why}"
    alternatives: tuple[Alternative, ...] = ()
    if board.snapshot.explained:
        alternatives = choice.rejected or _ahead_of(board, option)
    if not board.release(option, choice.code, why, alternatives):
        return False
    for lost in choice.passed_over:
        if board.passed_over(lost.kind) is None:
            board.pass_over(lost.kind, option.training, choice.verdict(lost))
    return True


def _ahead_of(board: Board, option: Option) -> tuple[Alternative, ...]:
    """Return the first trainings ahead in the queue that cannot come here, and why."""
    found: list[Alternative] = []
    place = option.places[0]
    for kind, training in board.queue:
        if kind is option.kind or len(found) == words.MOST_ALTERNATIVES:
            break
        code = board.admission.obstacle(training)
        if code is not None:
            reason = board.admission.sentence(code, training)
        else:
            code = place.obstacle(kind, training, board.slots) or ReasonCode.GANG_INCOMPLETE
            reason = words.obstacle(
                code,
                kind,
                place,
                slots=board.slots,
                limits=board.snapshot.limits,
                who=f"'{training.name}'",
            )
        found.append(
            Alternative(candidate=training.name, device=place.device.id, code=code, reason=reason)
        )
    return tuple(found)
