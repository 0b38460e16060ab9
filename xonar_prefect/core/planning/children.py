"""Trainings that a running one has started and waits for (`run_deployment`).

Such a parent holds its devices and gets nowhere until the child has ended, so the child comes
before the policy is asked, wherever it fits. Where it fits nowhere, its parent is named: nobody
else would think of it, and where nothing but the parent is in the way, it waits for ever.
"""

from __future__ import annotations

from dataclasses import replace

from xonar_prefect.core.decisions import Hold, ReasonCode
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning import words
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place


def serve_waited_on(board: Board) -> None:
    """Release, where they fit, trainings that a running one waits for."""
    parents = _residents(board)
    waited_on = [kind for kind, training in board.queue if training.parent in parents]
    for kind in waited_on:
        while (child := kind.front) is not None and _release(board, kind, child, parents):
            pass


def _release(board: Board, kind: Kind, child: Training, parents: dict[str, Training]) -> bool:
    options = (board.option(kind, child, place) for place in board.open_places())
    option = next((option for option in options if option is not None), None)
    if option is None:
        return False
    beside = bool(option.partners)
    code = ReasonCode.FITS_BESIDE_PARTNER if beside else ReasonCode.FIRST_ON_DEVICE
    why = f"'{parents[child.parent or ''].name}' waits for it, so it comes first"
    return board.release(option, code, why)


def name_parent(board: Board, hold: Hold) -> Hold:
    """Return the hold of a training, in which a parent that holds devices meanwhile is named."""
    child = hold.training
    parent = None if child.parent is None else _residents(board).get(child.parent)
    if parent is None:
        return hold
    places = [
        place
        for place in board.places
        if any(resident.training.run_id == parent.run_id for resident in place.residents)
    ]
    name = f"'{parent.name}'"
    holds = f"has started this training and holds {words.where(places)} as long as it waits for it"
    only = any(_would_fit(board, child, place, parent) for place in places)
    reason = (
        f"Nothing but {name} is in the way: it {holds}."
        if only
        else f"{hold.reason} Besides, {name} {holds}."
    )
    return hold._replace(
        code=ReasonCode.WAITED_ON_BY_PARENT,
        reason=f"{reason} Let {name} need no device (`gpus: 0`), or not wait (`timeout=0`).",
    )


def _residents(board: Board) -> dict[str, Training]:
    return {
        resident.training.run_id: resident.training
        for place in board.places
        for resident in place.residents
    }


def _would_fit(board: Board, child: Training, place: Place, parent: Training) -> bool:
    """Tell whether a training could start at its parent's place if that were not there."""
    if child.gpus != 1 or board.admission.obstacle(child) is not None:
        return False
    others = tuple(
        resident for resident in place.residents if resident.training.run_id != parent.run_id
    )
    freed_mib = sum(resident.used_mib for resident in place.residents if resident not in others)
    used_mib = max(0, place.device.used_mib - freed_mib)
    device = replace(place.device, residents=others, used_mib=used_mib)
    without = Place(device, board.snapshot.limits)
    without.reservations = place.reservations
    return without.obstacle(board.queue.kind_of(child), child, board.slots) is None
