"""`max_wait`: nobody submitted later may delay a training that has waited longer than that.

Overdue trainings are placed before anybody else, the longest waiting first, whatever their
priority; among those submitted at the same moment the policy chooses. For each that cannot start
now, the devices are reserved on which it will start first. Nothing submitted later is released to
a reserved device, unless it leaves that start where it is, slowdowns included (backfill): that is
worked out from known durations, so where one is unknown, nothing is backfilled. A reservation is
made anew from each snapshot; what it prefers holds until the devices have drained, so it does not
wander.

A gang for which too few devices are nobody's follows older ones on theirs, and the rest is reserved
for it meanwhile. Once every device is reserved for somebody, whoever is still overdue waits behind
those: only what ends before the reserved start can come in between, and the overdue are offered
that first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from xonar_prefect.core import memory
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.forecast import Forecast
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place, age_key, is_later

_SAME_MOMENT_SECONDS = 1e-3

_DrainKey: TypeAlias = tuple[bool, bool, bool, float, float, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReservation:
    """Devices that an overdue training will start on.

    Attributes:
        training: Whom they are reserved for.
        kind: Its kind.
        forecast: Foretells when it can start.
        starts_in_s: Seconds until it can start on all of them; None for unknown.
    """

    training: Training
    kind: Kind
    forecast: Forecast
    starts_in_s: float | None

    def keeps_out(self, training: Training, place: Place) -> bool:
        """Tell whether a training, submitted later, would delay this one."""
        if not is_later(training, self.training):
            return False
        if self.starts_in_s is None:
            return True
        then = self.forecast.start_after(self.kind, self.training, place, joining=training)
        return then is None or then > self.starts_in_s + _SAME_MOMENT_SECONDS


def serve_longest_waiting(board: Board, fill: Callable[[Board], None]) -> None:
    """Have overdue trainings released where they fit; reserve for those that fit nowhere."""
    overdue_at_s = board.snapshot.now_s - board.snapshot.limits.max_wait_seconds
    overdue = sorted(
        (
            training
            for training in board.held
            if training.submitted_at_s < overdue_at_s and training.gpus > 0
        ),
        key=age_key,
    )
    forecast = Forecast(board)
    for _, together in groupby(overdue, key=attrgetter("submitted_at_s")):
        waiting = [
            (kind, training)
            for training in sorted(together, key=attrgetter("priority", "run_id"))
            if (kind := board.queue.kind_of(training)).is_held(training)
        ]
        if board.open_places():
            board.offering = waiting
            fill(board)
            board.offering = None
        elif not anything_to_reserve(board):
            return
        if not anything_to_reserve(board):
            continue
        for kind, training in waiting:
            if kind.is_held(training):
                code = board.admission.obstacle(training)
                if code is None:
                    reserve(board, forecast, kind, training)
                else:
                    board.admission.keep_host_for(training, code)


def anything_to_reserve(board: Board) -> bool:
    """Tell whether a device is reserved for nobody yet."""
    return any(
        place.reservation is None and place.device.unavailable is None for place in board.places
    )


def reserve(board: Board, forecast: Forecast, kind: Kind, training: Training) -> None:
    """Reserve the devices of one model that drain first; nothing where there are too few."""
    best: list[tuple[_DrainKey, Place]] | None = None
    for places in board.places_by_model.values():
        usable = sorted(
            (_drain_key(board, forecast, kind, training, place), place.device.id, place)
            for place in places
            if place.device.unavailable is None
            and (place.reservation is None or training.gpus > 1)
            and place.need_of(kind).possible
            and not (training.gpus > 1 and place.device.is_slice)
        )
        chosen = [(key, place) for key, _, place in usable[: training.gpus]]
        if len(chosen) == training.gpus and (best is None or chosen[-1][0] < best[-1][0]):
            best = chosen
    if best is None:
        return
    starts = [_start(board, forecast, kind, training, place) for _, place in best]
    known = [seconds for seconds in starts if seconds is not None]
    reservation = StartReservation(
        training=training,
        kind=kind,
        forecast=forecast,
        starts_in_s=max(known) if len(known) == len(starts) else None,
    )
    for _, place in best:
        place.reservation = place.reservation or reservation


def _start(
    board: Board, forecast: Forecast, kind: Kind, training: Training, place: Place
) -> float | None:
    """Return when the training could start, behind whom the place is reserved for; None: unknown.

    Nobody is slowed down by partners who are not there yet, so it may really be later.
    """
    if place.reservation is None:
        return forecast.start_after(kind, training, place)
    older = place.reservation
    needs = board.durations.held(older.training, place.device.model)
    if older.starts_in_s is None or not needs.known:
        return None
    return older.starts_in_s + needs.seconds


def _drain_key(
    board: Board, forecast: Forecast, kind: Kind, training: Training, place: Place
) -> _DrainKey:
    """Order places by when the training could start: known times first, then fewest residents."""
    limits = board.snapshot.limits
    offer = memory.capacity_mib(place.device, limits) - memory.foreign_mib(place.device)
    need = place.need_of(kind)
    crowded = offer <= 0 or (need.mib is not None and need.mib > offer)
    start = _start(board, forecast, kind, training, place)
    latest_start = max((resident.started_at_s for resident in place.residents), default=0.0)
    first = float(len(place.residents)) if start is None else start
    index, name = place.device.index, place.device.id
    is_taken = place.reservation is not None
    return (is_taken, crowded, start is None, first, latest_start, index, name)
