"""The queue, by kinds: held trainings that no rule tells apart are weighed once."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from xonar_prefect.core.models import Training
from xonar_prefect.core.traits import Traits

Position = tuple[int, float, str]


class Kind:
    """Held trainings that differ in their submission and length only.

    Attributes:
        trainings: All of them, in queue order, those released as well.
        front: The first that is still held; None when all are released.
        traits: What they have in common.
    """

    __slots__ = ("_by_length", "_front_place", "_gone", "front", "trainings", "traits")

    def __init__(self, front: Training) -> None:
        """Take who will be the first of them; all are appended to `trainings`."""
        self.trainings: list[Training] = []
        self.front: Training | None = front
        self.traits = front.traits
        self._gone: set[str] = set()
        self._front_place = 0
        self._by_length: list[Training] | None = None

    @property
    def by_length(self) -> list[Training]:
        """All of them by remaining time, those released as well."""
        if len(self.trainings) == 1:
            return self.trainings
        if self._by_length is None:
            self._by_length = sorted(self.trainings, key=length)
        return self._by_length

    @property
    def count(self) -> int:
        """How many are still held."""
        return len(self.trainings) - len(self._gone)

    @property
    def held(self) -> Sequence[Training]:
        """Those that are still held, in queue order."""
        gone = self._gone
        if not gone:
            return self.trainings
        return [training for training in self.trainings if training.run_id not in gone]

    def is_held(self, training: Training) -> bool:
        """Tell whether one of them has not been taken."""
        return training.run_id not in self._gone

    def take(self, training: Training) -> None:
        """Take one of them out of the queue."""
        self._gone.add(training.run_id)
        while self.front is not None and self.front.run_id in self._gone:
            self._front_place += 1
            left = self._front_place < len(self.trainings)
            self.front = self.trainings[self._front_place] if left else None


def length(training: Training) -> float:
    """Return what a kind is ordered by: the remaining time, infinite where it is unknown."""
    return math.inf if training.remaining_seconds is None else training.remaining_seconds


class HeldQueue:
    """The kinds, ordered by their fronts.

    Attributes:
        kinds: All of them, those of which nobody is left as well.
    """

    def __init__(self, ordered: Iterable[Training]) -> None:
        """Take trainings that are in queue order already."""
        kinds: dict[Traits, Kind] = {}
        for training in ordered:
            kind = kinds.get(training.traits)
            if kind is None:
                kind = kinds[training.traits] = Kind(training)
            kind.trainings.append(training)
        self.kinds = tuple(kinds.values())
        # dict order is the order of first members, so this is sorted
        self._fronts: list[tuple[Position, Kind]] = [
            (kind.trainings[0].queue_position, kind) for kind in self.kinds
        ]

    @cached_property
    def _kind_by_run(self) -> dict[str, Kind]:
        return {training.run_id: kind for kind in self.kinds for training in kind.trainings}

    def __iter__(self) -> Iterator[tuple[Kind, Training]]:
        """Yield each kind with its front, in queue order; do not take while iterating."""
        for _, kind in self._fronts:
            front = kind.front
            if front is not None:
                yield kind, front

    def __len__(self) -> int:
        """Return the number of kinds that are held."""
        return len(self._fronts)

    def kind_of(self, training: Training) -> Kind:
        """Return the kind of a training that was held when the queue was made."""
        return self._kind_by_run[training.run_id]

    def take(self, kind: Kind, training: Training | None = None) -> None:
        """Take a training of the kind out of the queue; its front where none is named."""
        front = kind.front
        if front is None:
            return
        taken = front if training is None else training
        kind.take(taken)
        if taken is not front:
            return
        place = bisect_left(self._fronts, front.queue_position, key=_position)
        del self._fronts[place]
        following = kind.front
        if following is not None:
            insort(self._fronts, (following.queue_position, kind), key=_position)


def _position(entry: tuple[Position, Kind]) -> Position:
    return entry[0]
