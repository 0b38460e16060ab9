"""When a training could start on a device, from known durations and expected slowdowns."""

from __future__ import annotations

from typing import NamedTuple

from xonar_prefect.core import memory
from xonar_prefect.core.models import Resident, Training
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place

_DONE_SECONDS = 1e-6


class _Occupant(NamedTuple):
    """Who is on a device, or is thought to join it.

    Attributes:
        seconds: Time it still needs alone.
        load: Number of its load.
        mib: Memory it takes; None for all of it.
        shares: Whether a training on this device alone may be beside it.
    """

    seconds: float
    load: int
    mib: int | None
    shares: bool


class Forecast:
    """Foretells starts on the places of one board, as they are filled at the moment."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def start_after(
        self, kind: Kind, training: Training, place: Place, *, joining: Training | None = None
    ) -> float | None:
        """Return in how many seconds a training fits on a place if nobody else comes.

        Args:
            kind: The training's kind.
            training: The training.
            place: The place.
            joining: Somebody who is put there first.

        Returns:
            None where a duration that matters is unknown, or where others than our trainings fill
            the device.
        """
        there = [self._resident(resident, place) for resident in place.residents]
        if joining is not None:
            there.append(self._newcomer(joining, place))
        occupants = [each for each in there if each is not None]
        if len(occupants) < len(there):
            return None
        speeds_of = self._board.speeds(place.device.model)
        now = 0.0
        while not self._fits(kind, training, place, occupants):
            if not occupants:
                return None
            speeds = speeds_of[tuple([each.load for each in occupants])]
            both = list(zip(occupants, speeds, strict=True))
            step = min(each.seconds / speed for each, speed in both)
            now += step
            left = [each._replace(seconds=each.seconds - step * speed) for each, speed in both]
            occupants = [each for each in left if each.seconds > _DONE_SECONDS]
        return now

    def _resident(self, resident: Resident, place: Place) -> _Occupant | None:
        """Return a resident as it runs there; None where its end is not known."""
        model = place.device.model
        left = self._board.durations.of_resident(resident, model)
        if not left.known:
            return None
        mib = resident.request_mib
        now = self._board.snapshot
        starting_s = max(0.0, now.startup_seconds - (now.now_s - resident.started_at_s))
        return _Occupant(
            seconds=left.seconds + starting_s,
            load=self._board.speeds(model).load_of(resident.training),
            mib=None if mib is None else max(mib, resident.used_mib),
            shares=len(resident.devices) == 1 and not resident.training.exclusive,
        )

    def _newcomer(self, training: Training, place: Place) -> _Occupant | None:
        model = place.device.model
        needs = self._board.durations.held(training, model)
        if not needs.known:
            return None
        return _Occupant(
            seconds=needs.seconds + self._board.snapshot.startup_seconds,
            load=self._board.speeds(model).load_of(training),
            mib=memory.request_mib(training, model, self._board.snapshot.limits),
            shares=training.gpus == 1 and not training.exclusive,
        )

    def _fits(
        self, kind: Kind, training: Training, place: Place, occupants: list[_Occupant]
    ) -> bool:
        limits = self._board.snapshot.limits
        room = memory.capacity_mib(place.device, limits) - memory.foreign_mib(place.device)
        need = place.need_of(kind)
        if not occupants:
            return need.possible and room > 0 and (need.mib is None or need.mib <= room)
        if len(occupants) >= self._board.slots or training.exclusive or training.gpus > 1:
            return False
        if need.mib is None or not all(each.shares for each in occupants):
            return False
        taken = [each.mib for each in occupants]
        known = [mib for mib in taken if mib is not None]
        return len(known) == len(taken) and need.mib + sum(known) <= room
