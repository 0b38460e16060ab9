"""The queue, by kinds: held trainings that no rule tells apart are weighed once."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from xonar_prefect.core.memory import Need
from xonar_prefect.core.models import Training

Position = tuple[int, float, str]


class Kind:
    """Held trainings that differ in their time of submission only, in queue order."""

    __slots__ = ("_next", "needs", "trainings")

    def __init__(self) -> None:
        self.trainings: list[Training] = []
        self.needs: dict[tuple[str, int, int], Need] = {}
        self._next = 0

    @property
    def front(self) -> Training | None:
        """The first that is still held; None when all are released."""
        return self.trainings[self._next] if self._next < len(self.trainings) else None

    def take(self) -> None:
        """Take the front out of the queue."""
        self._next += 1


def kind_key(training: Training) -> tuple[object, ...]:
    """Return all that decides what a training may do, but for when it was submitted."""
    return (
        training.gpus,
        training.priority,
        training.queue,
        training.deployment,
        training.parent,
        training.memory_request_mib,
        training.exclusive,
        training.memory_elastic,
        training.host_memory_mib,
        training.cpu_threads,
        training.shared_memory_mib,
        training.profile_key,
        tuple(
            sorted(
                (
                    model,
                    profile.peak_memory_mib or 0,
                    profile.active_fraction or -1.0,
                    profile.held_memory_mib or 0,
                    profile.peak_host_memory_mib or 0,
                )
                for model, profile in training.profiles.items()
            )
        ),
    )


class HeldQueue:
    """The kinds, ordered by their fronts."""

    def __init__(self, ordered: Iterable[Training]) -> None:
        """Take trainings that are in queue order already."""
        kinds: dict[tuple[object, ...], Kind] = {}
        self._kind_by_run: dict[str, Kind] = {}
        for training in ordered:
            kind = kinds.setdefault(kind_key(training), Kind())
            kind.trainings.append(training)
            self._kind_by_run[training.run_id] = kind
        # dict order is the order of first members, so this is sorted
        self._fronts: list[tuple[Position, Kind]] = [
            (kind.trainings[0].queue_position, kind) for kind in kinds.values()
        ]

    def __iter__(self) -> Iterator[tuple[Kind, Training]]:
        """Yield each kind with its front, in queue order; do not take while iterating."""
        for _, kind in self._fronts:
            front = kind.front
            if front is not None:
                yield kind, front

    def kind_of(self, training: Training) -> Kind:
        """Return the kind of a training that was held when the queue was made."""
        return self._kind_by_run[training.run_id]

    def take(self, kind: Kind) -> None:
        """Take the kind's front out of the queue."""
        front = kind.front
        if front is None:
            return
        self._fronts = [entry for entry in self._fronts if entry[1] is not kind]
        kind.take()
        if kind.front is not None:
            insort(self._fronts, (kind.front.queue_position, kind), key=lambda entry: entry[0])
