"""The line: who waits, shortest first, as the future of a device is played through with."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

from xonar_prefect.core.models import Training
from xonar_prefect.core.planning import Board, Kind
from xonar_prefect.core.planning.kinds import Position, length


class Waiting(NamedTuple):
    """One who waits.

    Attributes:
        priority: Nobody with a larger number comes before it.
        rank: Device time it needs, over its weight: the less, the sooner.
        position: Its position in the queue: among equals, first come first served.
        kind: Its kind.
        training: The training.
        seconds: Time it needs alone on this device model.
        weight: What a second of its completion time counts.
    """

    priority: int
    rank: float
    position: Position
    kind: Kind
    training: Training
    seconds: float
    weight: float


_Head: TypeAlias = tuple[int, float, Position, float, "_Row"]
"""The first of a row: its priority, rank and position as it will wait, its seconds, the row."""


class _Row:
    """Those of a kind who know how long they take, or those who do not, shortest first.

    Attributes:
        kind: The kind.
        ordered: All of the kind.
        place: Which of them is the first of the row now.
        weight: What a second of their completion times counts.
        slower: By what factor they are slower here than on their fastest model.
    """

    __slots__ = ("kind", "ordered", "place", "slower", "weight")

    def __init__(self, kind: Kind, place: int, weight: float, slower: float) -> None:
        self.kind = kind
        self.ordered = kind.by_length
        self.place = place
        self.weight = weight
        self.slower = slower

    def move_up(self) -> bool:
        """Let the next be the first; tell whether there is one."""
        before = self.ordered[self.place]
        self.place += 1
        left = self.place < len(self.ordered)
        return left and _is_known(self.ordered[self.place]) == _is_known(before)


class Line:
    """Who waits for devices of one model, in the order of preference; iterate over it.

    Of a long queue only the first are ever asked for. A kind is in order by itself, once those that
    do not know how long they take stand in a row of their own, so the rows are merged as far as
    somebody asks.

    Attributes:
        weight: The weight of all of them, at first.
        count: How many there were at first.
    """

    def __init__(
        self, board: Board, device_model: str, weight_of: Callable[[Training], float]
    ) -> None:
        """Line up who waits for a device of this model.

        Args:
            board: The plan so far.
            device_model: The device model.
            weight_of: Tells what a second of a training's completion time counts.
        """
        self._durations = board.durations
        self._device_model = device_model
        self._heads: list[_Head] = []
        self._come: list[Waiting] = []
        self._start = 0
        self.count = 0
        weights = []
        for kind, front in board.queue:
            weight, held, ordered = weight_of(front), kind.count, kind.by_length
            slower = self._durations.slower_than_fastest(front, device_model)
            self._heads.append(self._head(_Row(kind, 0, weight, slower)))
            if not _is_known(ordered[-1]) and _is_known(ordered[0]):
                unknown = bisect_left(ordered, math.inf, key=length)
                self._heads.append(self._head(_Row(kind, unknown, weight, slower)))
            weights.append(weight * held)
            self.count += held
        heapify(self._heads)
        self.weight = math.fsum(weights)

    def __iter__(self) -> Iterator[Waiting]:
        """Yield those that are still held."""
        come = self._come
        while self._start < len(come) and not _is_held(come[self._start]):
            self._start += 1
        for place in count(self._start):
            if place == len(come):
                if not self._heads:
                    return
                come.append(self._next())
            if _is_held(come[place]):
                yield come[place]

    def _next(self) -> Waiting:
        """Take the first of all rows, and let the row that it stood in move up."""
        priority, rank, position, seconds, row = heappop(self._heads)
        training = row.ordered[row.place]
        if row.move_up():
            heappush(self._heads, self._head(row))
        return Waiting(priority, rank, position, row.kind, training, seconds, row.weight)

    def _head(self, row: _Row) -> _Head:
        training = row.ordered[row.place]
        own = training.remaining_seconds
        if own is None:
            seconds = self._durations.held(training, self._device_model).seconds
        else:
            seconds = own * row.slower
        rank = seconds * (training.gpus / row.weight)
        return (training.priority, rank, training.queue_position, seconds, row)


def _is_known(training: Training) -> bool:
    return training.remaining_seconds is not None


def _is_held(waiting: Waiting) -> bool:
    return waiting.kind.is_held(waiting.training)
