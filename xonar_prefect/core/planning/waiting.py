"""`max_wait`: nobody submitted later may delay a training that has waited longer than that.

Overdue trainings are placed before anybody else, the longest waiting first, whatever their
priority; among those submitted at the same moment the policy chooses. For each that cannot start
now, the devices are reserved on which it will start first. Nothing submitted later is released to
a reserved device, unless it leaves that start where it is, slowdowns included (backfill): that is
worked out from known durations, so where one is unknown, nothing is backfilled. A reservation is
made anew from each snapshot; what it prefers holds until the devices have drained, so it does not
wander.

Where one could start and its policy lets it wait for a better moment, nobody later comes either.
A device that is reserved may be reserved again for who will be done there before that start. A gang
for which too few devices are left follows older ones on theirs, and the rest is reserved for it
meanwhile. Once every device is reserved, only some more of the overdue are provided for in this
way; what ends before the reserved starts can come in between, and the overdue are offered that
first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from xonar_prefect.core import memory
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.forecast import Forecast
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place, age_key, is_later

_SAME_MOMENT_SECONDS = 1e-3
_TRIED_ONCE_ALL_IS_RESERVED = 8
"""For how many of the overdue a place is looked for once every device is reserved."""


@dataclass(frozen=True, slots=True)
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
    reserving = Reserving(board)
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
        elif reserving.is_over:
            return
        for kind, training in waiting:
            if not kind.is_held(training):
                continue
            code = board.admission.obstacle(training)
            if code is not None:
                board.admission.keep_host_for(training, code)
            elif not reserving.keep(kind, training) and not reserving.is_over:
                reserving.reserve(kind, training)


class _Claim(NamedTuple):
    """A place that a training could have; the best come first.

    Attributes:
        follows: It has to follow older ones there, so nothing is reserved.
        is_crowded: Others than our trainings fill it.
        start_is_unknown: It is not known when the training could start.
        first: When it could start; where that is unknown, how many are there.
        latest_start: When the latest of those there was started.
        number: Index of the device.
        device: Its id.
        place: The place.
    """

    follows: bool
    is_crowded: bool
    start_is_unknown: bool
    first: float
    latest_start: float
    number: int
    device: str
    place: Place

    @property
    def starts_in_s(self) -> float | None:
        """Seconds until the training can start; None for unknown."""
        return None if self.start_is_unknown else self.first


class Reserving:
    """Reserves the places of one board for overdue trainings, the longest waiting first."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._forecast = Forecast(board)
        self._tries_left = _TRIED_ONCE_ALL_IS_RESERVED

    @property
    def is_over(self) -> bool:
        """Whether nobody else is provided for."""
        return self._tries_left == 0

    def keep(self, kind: Kind, training: Training) -> bool:
        """Keep where a training could start now and its policy lets it wait; False for nowhere."""
        for place in self._board.open_places():
            option = self._board.option(kind, training, place)
            if option is not None:
                reservation = StartReservation(training, kind, self._forecast, starts_in_s=0.0)
                for each in option.places:
                    each.reservations.append(reservation)
                return True
        return False

    def reserve(self, kind: Kind, training: Training) -> None:
        """Reserve the places of one model on which the training starts first, if there are any."""
        if not any(
            not place.reservations and place.device.unavailable is None
            for place in self._board.places
        ):
            self._tries_left -= 1
        best: list[_Claim] | None = None
        for places in self._board.places_by_model.values():
            claims = sorted(
                claim
                for place in places
                if (claim := self._claim(kind, training, place)) is not None
            )[: training.gpus]
            if len(claims) < training.gpus or claims[0].follows:
                continue
            if best is None or claims[-1] < best[-1]:
                best = claims
        if best is None:
            return
        starts = [claim.starts_in_s for claim in best]
        known = [seconds for seconds in starts if seconds is not None]
        reservation = StartReservation(
            training,
            kind,
            self._forecast,
            starts_in_s=max(known) if len(known) == len(starts) else None,
        )
        for claim in best:
            if not claim.follows:
                claim.place.reservations.append(reservation)

    def _claim(self, kind: Kind, training: Training, place: Place) -> _Claim | None:
        device, need = place.device, place.need_of(kind)
        if device.unavailable is not None or not need.possible:
            return None
        if training.gpus > 1 and device.is_slice:
            return None
        follows = not self._is_done_before(place, training, 0.0)
        start = None
        if not follows:
            start = self._forecast.start_after(kind, training, place)
            follows = not self._is_done_before(place, training, start)
        if follows:
            if training.gpus == 1:
                return None
            start = self._end_of_all(place)
        limits = self._board.snapshot.limits
        offer = memory.capacity_mib(device, limits) - memory.foreign_mib(device)
        return _Claim(
            follows=follows,
            is_crowded=offer <= 0 or (need.mib is not None and need.mib > offer),
            start_is_unknown=start is None,
            first=float(len(place.residents)) if start is None else start,
            latest_start=max((resident.started_at_s for resident in place.residents), default=0.0),
            number=device.index,
            device=device.id,
            place=place,
        )

    def _is_done_before(self, place: Place, training: Training, start_s: float | None) -> bool:
        """Tell whether it is done before those start for whom the place is reserved already."""
        if not place.reservations:
            return True
        needs = self._board.durations.held(training, place.device.model)
        starts = [each.starts_in_s for each in place.reservations]
        known = [seconds for seconds in starts if seconds is not None]
        if start_s is None or not needs.known or len(known) < len(starts):
            return False
        return start_s + self._board.snapshot.startup_seconds + needs.seconds <= min(known)

    def _end_of_all(self, place: Place) -> float | None:
        """Return when those are done for whom a place is reserved, at the earliest.

        Nobody is slowed down by partners who are not there yet, so it may really be later.
        """
        latest = 0.0
        for each in place.reservations:
            needs = self._board.durations.held(each.training, place.device.model)
            if each.starts_in_s is None or not needs.known:
                return None
            startup_s = self._board.snapshot.startup_seconds
            latest = max(latest, each.starts_in_s + startup_s + needs.seconds)
        return latest
