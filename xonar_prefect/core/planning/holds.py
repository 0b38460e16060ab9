"""Why a training is still held, once a plan is made."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TypeAlias

from xonar_prefect.core.models import Alternative, Decision, Hold, ReasonCode, Training
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
            ReasonCode.INSUFFICIENT_MEMORY,
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

_Obstacles: TypeAlias = tuple[str | None, tuple[Alternative, ...]]
"""What a gang as a whole lacks, if it is one, and what is in the way at the nearest places."""


class HoldExplainer:
    """Explains the holds of one board, each kind once."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._limits = board.snapshot.limits
        self._by_kind: dict[tuple[int, bool], _Obstacles] = {}
        self._has_place: dict[int, bool] = {}
        self._reserved = [place for place in board.places if place.reserved_for is not None]
        self._open = board.open_places()
        # What is full or unavailable is so for everybody; the sentences do not name the training.
        open_ids = {place.device.id for place in self._open}
        self._closed = _ranked(
            (_closed_because(place), place)
            for place in board.places
            if place.device.id not in open_ids
        )

    def decisions(self) -> dict[str, Decision]:
        """Return exactly one decision per held training, by run id, in queue order."""
        board = self._board
        return {
            training.run_id: board.releases.get(training.run_id)
            or board.refusals.get(training.run_id)
            or name_parent(board, self.hold(training))
            for training in board.held
        }

    def hold(self, training: Training) -> Hold:
        """Return why the training is held."""
        limit = self._board.admission.obstacle(training)
        if limit is not None and not self._waits_for_a_place_anyway(limit, training):
            reason = self._board.admission.sentence(limit, training)
            return Hold(training=training, code=limit, reason=reason)
        if not self._board.places:
            reason = "This worker has no device."
            return Hold(training=training, code=ReasonCode.NO_DEVICE, reason=reason)
        headline, others = self._obstacles(self._board.queue.kind_of(training), training)
        passed_over = self._board.why_passed_over(training)
        if passed_over is not None:
            code, reason, alternatives = ReasonCode.BETTER_PARTNER_CHOSEN, passed_over, others
        elif headline is not None:
            code, reason, alternatives = ReasonCode.GANG_INCOMPLETE, headline, others
        else:
            code, reason, alternatives = others[0].code, others[0].reason, others[1:]
            if code is ReasonCode.NO_FREE_SLOT:
                reason = self._all_full
        if any(place.reserved_for is training for place in self._reserved):
            reason = self._with_reservation(reason)
        return Hold(training=training, code=code, reason=reason, alternatives=alternatives)

    def _waits_for_a_place_anyway(self, limit: ReasonCode, training: Training) -> bool:
        """Tell whether a passing limit is not worth showing, as there is no place either.

        Shown to a whole queue for the seconds in which the first of it start, it would have every
        run's reason written twice.
        """
        if limit is not ReasonCode.STARTS_LIMITED or training.gpus == 0 or not self._board.places:
            return False
        kind = self._board.queue.kind_of(training)
        if id(kind) not in self._has_place:
            self._has_place[id(kind)] = any(
                place.obstacle(kind, training, self._board.slots) is None for place in self._open
            )
        return not self._has_place[id(kind)]

    def _with_reservation(self, reason: str) -> str:
        verb = "is" if len(self._reserved) == 1 else "are"
        return (
            f"{reason.removesuffix('.')}; {words.where(self._reserved)} {verb} reserved for it, as "
            f"it has waited longer than {self._limits.max_wait_seconds:g} s."
        )

    def _obstacles(self, kind: Kind, training: Training) -> _Obstacles:
        kept = any(place.is_kept_from(training) for place in self._reserved)
        explained = self._by_kind.get((id(kind), kept))
        if explained is None:
            explained = self._explain(kind, training)
            self._by_kind[id(kind), kept] = explained
        return explained

    def _explain(self, kind: Kind, training: Training) -> _Obstacles:
        # None: the place is free, but others that a gang needs are not
        found = _ranked(
            (place.obstacle(kind, training, self._board.slots) or ReasonCode.GANG_INCOMPLETE, place)
            for place in self._open
        )
        nearest = (found + self._closed)[: words.MOST_ALTERNATIVES]
        obstacles = tuple(
            Alternative(
                candidate=_THIS,
                device=place.device.id,
                code=code,
                reason=self._sentence(code, kind, place),
            )
            for code, place in nearest
        )
        is_gang = training.gpus > 1 and obstacles[0].code not in _SAYS_ENOUGH
        return (self._gang(kind, training) if is_gang else None), obstacles

    @cached_property
    def _all_full(self) -> str:
        """Name every device without a free slot: a person looks for their own among them."""
        full = [place for code, place in self._closed if code is ReasonCode.NO_FREE_SLOT]
        return words.all_full(full, slots=self._board.slots)

    def _sentence(self, code: ReasonCode, kind: Kind, place: Place) -> str:
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
