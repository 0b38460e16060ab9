"""`max_wait`: nobody submitted later may delay a training that has waited longer than that.

Overdue trainings are placed before the policy is asked, the longest waiting first, whatever their
priority. For the first of them that cannot start now, one set of devices is reserved: nothing
submitted later is released there, not even for a while (no backfill), so its wait ends when what
runs there has drained. The reservation is computed anew from each snapshot; what it prefers holds
until the reserved devices have drained, so it does not wander.
"""

from __future__ import annotations

import heapq

from xonar_prefect.core import memory
from xonar_prefect.core.models import ReasonCode, Training
from xonar_prefect.core.planning import words
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Option, Place, age_key

_DrainKey = tuple[bool, bool, float, float, int, str]


def serve_longest_waiting(board: Board) -> None:
    """Release overdue trainings where they fit; reserve for the first that fits nowhere."""
    max_wait = board.snapshot.limits.max_wait_seconds
    now = board.snapshot.now_s

    def entry(kind: Kind, training: Training) -> tuple[tuple[float, str], Kind]:
        return (age_key(training), kind)

    overdue = [
        entry(kind, training)
        for kind, training in board.queue
        if now - training.submitted_at_s > max_wait
    ]
    heapq.heapify(overdue)
    reserved = any(place.reserved_for is not None for place in board.places)
    places = board.open_places()
    while overdue and (places or not reserved):
        _, kind = heapq.heappop(overdue)
        training = kind.front
        if training is None:
            continue
        code = board.admission.obstacle(training)
        if code is not None:
            board.admission.keep_host_for(training, code)
            continue
        options = (board.option(kind, training, place) for place in places)
        option = next((option for option in options if option is not None), None)
        if option is None:
            reserved = reserved or _reserve(board, kind, training)
        elif _release(board, option):
            places = board.open_places()
            following = kind.front
            if following is not None and now - following.submitted_at_s > max_wait:
                heapq.heappush(overdue, entry(kind, following))


def _release(board: Board, option: Option) -> bool:
    beside = bool(option.partners)
    waited = board.snapshot.now_s - option.training.submitted_at_s
    why = (
        f"waited {waited:.0f} s, longer than {board.snapshot.limits.max_wait_seconds:g} s, "
        "so it comes first"
    )
    code = ReasonCode.FITS_BESIDE_PARTNER if beside else ReasonCode.FIRST_ON_DEVICE
    slowdown = board.slowdown(option) if beside else None
    return board.release(option, code, words.release(option, why, slowdown))


def _reserve(board: Board, kind: Kind, training: Training) -> bool:
    """Reserve the devices of one model that drain first; False where there are too few."""
    best: list[tuple[_DrainKey, Place]] | None = None
    for places in board.places_by_model.values():
        usable = sorted(
            (_drain_key(board, kind, place), place.device.id, place)
            for place in places
            if place.device.unavailable is None
            and place.need_of(kind).possible
            and not (training.gpus > 1 and place.device.is_slice)
        )
        chosen = [(key, place) for key, _, place in usable[: training.gpus]]
        if len(chosen) == training.gpus and (best is None or chosen[-1][0] < best[-1][0]):
            best = chosen
    for _, place in best or ():
        place.reserved_for = training
    return best is not None


def _drain_key(board: Board, kind: Kind, place: Place) -> _DrainKey:
    """Order places by when they will be free: known ends first, then the fewest residents."""
    limits = board.snapshot.limits
    offer = memory.capacity_mib(place.device, limits) - memory.foreign_mib(place.device)
    need = place.need_of(kind)
    crowded = offer <= 0 or (need.mib is not None and need.mib > offer)
    remaining = [resident.training.remaining_seconds for resident in place.residents]
    known = [seconds for seconds in remaining if seconds is not None]
    latest_start = max((resident.started_at_s for resident in place.residents), default=0.0)
    unknown = len(known) < len(remaining)
    first = float(len(remaining)) if unknown else max(known, default=0.0)
    return (crowded, unknown, first, latest_start, place.device.index, place.device.id)
