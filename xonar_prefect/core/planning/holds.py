"""Why a training is still held, once a plan is made."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

from xonar_prefect.core.decisions import (
    Alternative,
    Decision,
    Hold,
    ReasonCode,
)
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning import words
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.children import name_parent
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place

# The nearer an obstacle is to a release, the more its removal is worth knowing of.
_NEAREST_FIRST = {
    code: rank
    for rank, code in enumerate(
        (
            ReasonCode.OLDER_TRAINING_WAITS,
            ReasonCode.BETTER_ALONE,
            ReasonCode.DEVICE_KEPT_FREE,
            ReasonCode.INSUFFICIENT_MEMORY,
            ReasonCode.KNOWN_TO_CLASH,
            ReasonCode.PARTNER_UNPROFILED,
            ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE,
            ReasonCode.EXCLUSIVE,
            ReasonCode.GANG_INCOMPLETE,
            ReasonCode.NO_FREE_SLOT,
            ReasonCode.NO_DEVICE,
        )
    )
}
_SAYS_ENOUGH = (ReasonCode.OLDER_TRAINING_WAITS, ReasonCode.NO_DEVICE)
_THIS = "this training"
_queue_position = attrgetter("queue_position")

_Obstacles: TypeAlias = tuple[str | None, tuple[Alternative, ...]]
"""What a gang as a whole lacks, if it is one, and what is in the way at the nearest places."""

_Why: TypeAlias = tuple[ReasonCode, str, tuple[Alternative, ...]]


class HoldExplainer:
    """Explains the holds of one board, kind by kind."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._limits = board.snapshot.limits
        self._reserved = [place for place in board.places if place.reservations]
        waited_for = [training for place in self._reserved for training in place.reserved_for]
        self._waited_for = {training.run_id for training in waited_for}
        self._reserved_since_s = sorted(training.submitted_at_s for training in waited_for)
        self._open = _alike(board.open_places())
        # What is full or unavailable is so for everybody; the sentences do not name the training.
        self._closed = _ranked(
            (_closed_because(place), place)
            for place in board.places
            if place.device.unavailable is not None or len(place.residents) >= board.slots
        )

    def decisions(self) -> dict[str, Decision]:
        """Return exactly one decision per held training, by run id, in queue order."""
        board = self._board
        found: dict[str, Decision] = {**board.refusals, **board.releases}
        if board.places:
            for kind in board.queue.kinds:
                found.update({hold.training.run_id: hold for hold in self._holds(kind)})
        return {
            training.run_id: found.get(training.run_id) or self._without_devices(training)
            for training in board.held
        }

    def _holds(self, kind: Kind) -> Iterable[Hold]:
        """Return why those of a kind are held, explained once for all that nothing tells apart."""
        front = kind.front
        if front is None:
            return ()
        kept_for_older = self._reserved or self._board.admission.keeps_host
        if kept_for_older or front.parent is not None:
            return self._holds_one_by_one(kind)
        holds: list[Hold] = []
        held = kind.held
        lost = self._board.passed_over(kind)
        losers = 0 if lost is None else bisect_left(held, lost.before, key=_queue_position)
        for those, verdict in ((held[:losers], lost and lost.reason), (held[losers:], None)):
            if those:
                holds += Hold.all_alike(those, *self._explain(kind, those[0], verdict))
        return holds

    def _holds_one_by_one(self, kind: Kind) -> Iterator[Hold]:
        """Yield the same where some of them may do what others may not."""
        board = self._board
        passed_over = board.passed_over(kind)
        by_state: dict[tuple[int, bool, ReasonCode | None], _Why] = {}
        for training in kind.held:
            # which reserved places it is kept from depends on its time of submission alone
            older = bisect_left(self._reserved_since_s, training.submitted_at_s)
            verdict = None
            if passed_over is not None and training.queue_position < passed_over.before:
                verdict = passed_over.reason
            limit = board.admission.obstacle(training) if board.admission.keeps_host else None
            state = (older, verdict is not None, limit)
            why = by_state.get(state)
            if training.run_id in self._waited_for:
                why = self._with_reservation(training, self._explain(kind, training, verdict))
            elif why is None:
                why = by_state[state] = self._explain(kind, training, verdict)
            code, reason, alternatives = why
            hold = Hold(training, code, reason, alternatives)
            yield hold if training.parent is None else name_parent(board, hold)

    def _without_devices(self, training: Training) -> Hold:
        """Return why a training is held that needs no device, or where there is none."""
        code, reason = ReasonCode.NO_DEVICE, "This worker has no device."
        limit = self._board.admission.obstacle(training)
        if limit is not None:
            code, reason = limit, self._board.admission.sentence(limit, training)
        return name_parent(self._board, Hold(training=training, code=code, reason=reason))

    def _explain(self, kind: Kind, training: Training, verdict: str | None) -> _Why:
        limit = self._board.admission.obstacle(training)
        if limit is not None and not self._waits_for_a_place_anyway(limit, kind, training):
            return limit, self._board.admission.sentence(limit, training), ()
        headline, others = self._obstacles(kind, training)
        code, reason = others[0].code, others[0].reason
        if verdict is not None:
            code, reason = ReasonCode.BETTER_PARTNER_CHOSEN, verdict
        elif headline is not None:
            code, reason = ReasonCode.GANG_INCOMPLETE, headline
        else:
            others = others[1:]
            if code is ReasonCode.NO_FREE_SLOT:
                reason = self._all_full
            elif code is ReasonCode.NO_DEVICE:
                reason = self._all_unavailable
        return code, reason, others

    def _waits_for_a_place_anyway(self, limit: ReasonCode, kind: Kind, training: Training) -> bool:
        """Tell whether a passing limit is not worth showing, as there is no place either.

        Shown to a whole queue for the seconds in which the first of it start, it would have every
        run's reason written twice.
        """
        return limit is ReasonCode.STARTS_LIMITED and all(
            places[0].obstacle(kind, training, self._board.slots) is not None
            for places in self._open
        )

    def _with_reservation(self, training: Training, why: _Why) -> _Why:
        code, reason, alternatives = why
        own = [place for place in self._reserved if training in place.reserved_for]
        verb = "is" if len(own) == 1 else "are"
        reason = (
            f"{reason.removesuffix('.')}; {words.where(own)} {verb} reserved for this "
            f"training, as it has waited longer than {self._limits.max_wait_seconds:g} s."
        )
        return code, reason, alternatives

    def _obstacles(self, kind: Kind, training: Training) -> _Obstacles:
        found: list[tuple[ReasonCode, Place]] = []
        for places in self._open:
            code = places[0].obstacle(kind, training, self._board.slots)
            if code is None:
                # the policy keeps the place free, or others that a gang needs are not free
                kept_free = places[0].kept_free
                code = kept_free[0] if kept_free else ReasonCode.GANG_INCOMPLETE
            found += [(code, place) for place in places[: words.MOST_ALTERNATIVES]]
        nearest = tuple(
            _in_the_way(code, place, self._sentence(code, kind, place))
            for code, place in _ranked(found)[: words.MOST_ALTERNATIVES]
        )
        obstacles = (*nearest, *self._full_or_gone)[: words.MOST_ALTERNATIVES]
        is_gang = training.gpus > 1 and obstacles[0].code not in _SAYS_ENOUGH
        return (self._gang(kind, training) if is_gang else None), obstacles

    @cached_property
    def _full_or_gone(self) -> tuple[Alternative, ...]:
        """What is in the way where nobody gets in."""
        return tuple(
            _in_the_way(code, place, words.closed(code, place, slots=self._board.slots))
            for code, place in self._closed[: words.MOST_ALTERNATIVES]
        )

    @cached_property
    def _all_full(self) -> str:
        """Name every device without a free slot: a person looks for their own among them."""
        full = [place for code, place in self._closed if code is ReasonCode.NO_FREE_SLOT]
        return words.all_full(full, slots=self._board.slots)

    @cached_property
    def _all_unavailable(self) -> str:
        """Name every unavailable device, for the same reason."""
        gone = [place for code, place in self._closed if code is ReasonCode.NO_DEVICE]
        return words.all_unavailable(gone)

    def _sentence(self, code: ReasonCode, kind: Kind, place: Place) -> str:
        if place.kept_free is not None and code is place.kept_free[0]:
            return place.kept_free[1]
        return words.obstacle(
            code, kind, place, slots=self._board.slots, limits=self._limits, who=_THIS
        )

    def _gang(self, kind: Kind, training: Training) -> str:
        ready = {
            model: sum(
                not place.residents and place.obstacle(kind, training, self._board.slots) is None
                for place in places
            )
            for model, places in self._board.places_by_model.items()
        }
        model, most = max(ready.items(), key=lambda entry: (entry[1], entry[0]))
        total = len(self._board.places_by_model[model])
        return (
            f"This training needs {training.gpus} empty devices of one model at once, but only "
            f"{most} of {total} of model {model} are empty with room for it."
        )


def _in_the_way(code: ReasonCode, place: Place, reason: str) -> Alternative:
    return Alternative(candidate=_THIS, device=place.device.id, code=code, reason=reason)


def _alike(places: Iterable[Place]) -> list[list[Place]]:
    """Group places at which every training meets the same obstacle."""
    groups: dict[tuple[object, ...], list[Place]] = defaultdict(list)
    for place in places:
        if place.reservations or place.kept_free is not None:
            groups[(place.device.id,)].append(place)
            continue
        state = (
            place.memory_type,
            place.available_mib,
            len(place.residents),
            bool(place.unprofiled),
            frozenset(
                (len(r.devices), r.training.exclusive, r.training.profile_key)
                for r in place.residents
            ),
        )
        groups[state].append(place)
    return list(groups.values())


def _closed_because(place: Place) -> ReasonCode:
    unavailable = place.device.unavailable is not None
    return ReasonCode.NO_DEVICE if unavailable else ReasonCode.NO_FREE_SLOT


def _ranked(found: Iterable[tuple[ReasonCode, Place]]) -> list[tuple[ReasonCode, Place]]:
    return sorted(
        found,
        key=lambda entry: (_NEAREST_FIRST[entry[0]], entry[1].device.index, entry[1].device.id),
    )


def decisions_of(board: Board) -> dict[str, Decision]:
    """Return exactly one decision per held training, by run id, in queue order."""
    return HoldExplainer(board).decisions()
