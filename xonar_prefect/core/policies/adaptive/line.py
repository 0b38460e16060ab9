"""The line: who waits, shortest first, as the future of a device is played through with."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

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


class _Terms(NamedTuple):
    """What those of a kind have in common.

    Attributes:
        first_number: The number in the line of the first of them.
        weight: What a second of their completion times counts.
        slower: By what factor they are slower here than on their fastest model.
    """

    first_number: int
    weight: float
    slower: float


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
        self._terms: dict[Kind, _Terms] = {}
        self._heads: list[Waiting] = []
        self._come: list[Waiting] = []
        self._start = 0
        self.count = number = 0
        weights = []
        for kind, front in board.queue:
            weight, held, ordered = weight_of(front), kind.count, kind.by_length
            slower = self._durations.slower_than_fastest(front, device_model)
            self._terms[kind] = _Terms(number, weight, slower)
            self._heads.append(self._waiting(kind, 0))
            if ordered[-1].remaining_seconds is None and ordered[0].remaining_seconds is not None:
                unknown = bisect_left(ordered, math.inf, key=length)
                self._heads.append(self._waiting(kind, unknown))
            weights.append(weight * held)
            self.count += held
            number += len(ordered)
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
        first = heappop(self._heads)
        kind = first.kind
        place = first.number - self._terms[kind].first_number + 1
        ordered = kind.by_length
        if place < len(ordered) and _is_known(ordered[place]) == _is_known(first.training):
            heappush(self._heads, self._waiting(kind, place))
        return first

    def _waiting(self, kind: Kind, place: int) -> Waiting:
        training = kind.by_length[place]
        terms = self._terms[kind]
        own = training.remaining_seconds
        if own is None:
            seconds = self._durations.held(training, self._device_model).seconds
        else:
            seconds = own * terms.slower
        rank = seconds * (training.gpus / terms.weight)
        number = terms.first_number + place
        return Waiting(training.priority, rank, number, kind, training, seconds, terms.weight)


def _is_known(training: Training) -> bool:
    return training.remaining_seconds is not None


def _is_held(waiting: Waiting) -> bool:
    return waiting.kind.is_held(waiting.training)
