"""The line: who waits, shortest first, as the future of a device is played through with."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, repeat
from typing import NamedTuple

from xonar_prefect.core.durations import Durations
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning import Board, Kind
from xonar_prefect.core.planning.kinds import length


class Waiting(NamedTuple):
    """One who waits.

    Attributes:
        priority: Nobody with a larger number comes before it.
        rank: Device time it needs, over its weight: the less, the sooner.
        number: Its number in the line, for ties.
        kind: Its kind.
        training: The training.
        seconds: Time it needs alone on this device model.
        weight: What a second of its completion time counts.
    """

    priority: int
    rank: float
    number: int
    kind: Kind
    training: Training
    seconds: float
    weight: float


class Line:
    """Who waits for devices of one model, in the order of preference; iterate over it.

    Of a long queue only the first are ever asked for, so no more than these are put in order.

    Attributes:
        weight: The weight of all of them, at first.
        count: How many there were at first.
    """

    def __init__(self, rows: Iterable[Iterator[Waiting]], *, weight: float, count: int) -> None:
        """Take rows that are in order, each of them by itself."""
        self._coming = heapq.merge(*rows)
        self._come: list[Waiting] = []
        self._start = 0
        self.weight = weight
        self.count = count

    def __iter__(self) -> Iterator[Waiting]:
        """Yield those that are still held."""
        come = self._come
        while self._start < len(come) and not _is_held(come[self._start]):
            self._start += 1
        for place in count(self._start):
            if place == len(come):
                following = next(self._coming, None)
                if following is None:
                    return
                come.append(following)
            if _is_held(come[place]):
                yield come[place]


def _is_held(waiting: Waiting) -> bool:
    return waiting.kind.is_held(waiting.training)


def line_up(board: Board, device_model: str, weight_of: Callable[[Training], float]) -> Line:
    """Return who waits for a device of this model.

    Args:
        board: The plan so far.
        device_model: The device model.
        weight_of: Tells what a second of a training's completion time counts.
    """
    rows: list[Iterator[Waiting]] = []
    weights: list[Iterator[float]] = []
    number = held = 0
    for kind, front in board.queue:
        weight = weight_of(front)
        rows += _rows(kind, front, weight, board.durations, device_model, number)
        weights.append(repeat(weight, kind.count))
        number += len(kind.trainings)
        held += kind.count
    return Line(rows, weight=math.fsum(chain.from_iterable(weights)), count=held)


def _rows(
    kind: Kind,
    front: Training,
    weight: float,
    durations: Durations,
    device_model: str,
    number: int,
) -> Iterator[Iterator[Waiting]]:
    """Yield a kind in rows that are in order: those that know how long they take, the others.

    Args:
        kind: The kind.
        front: Its front.
        weight: What a second of their completion times counts.
        durations: How long they take.
        device_model: The device model.
        number: That of the kind's first in the line.
    """
    ordered = kind.by_length
    known = bisect_left(ordered, math.inf, key=length)
    if known:
        # of one kind all are slower than on their fastest model by the same factor
        remaining = front.remaining_seconds
        sample = durations.held(front, device_model).seconds
        factor = sample / remaining if remaining else None

        def own_seconds(training: Training) -> float:
            own = training.remaining_seconds
            if own is None or factor is None:
                return durations.held(training, device_model).seconds
            return own * factor

        yield _row(kind, ordered[:known], own_seconds, weight, number)
    if known < len(ordered):
        # of one kind all are thought to take as long as the others took
        usual = durations.held(ordered[known], device_model).seconds
        yield _row(kind, ordered[known:], lambda _: usual, weight, number + known)


def _row(
    kind: Kind,
    ordered: Iterable[Training],
    seconds_of: Callable[[Training], float],
    weight: float,
    number: int,
) -> Iterator[Waiting]:
    for place, training in enumerate(ordered, number):
        seconds = seconds_of(training)
        rank = seconds * (training.gpus / weight)
        yield Waiting(training.priority, rank, place, kind, training, seconds, weight)
