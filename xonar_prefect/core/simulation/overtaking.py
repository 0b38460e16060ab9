"""Counts who took the place of a training that had waited longer than `max_wait`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from xonar_prefect.core.decisions import Decision, Release
from xonar_prefect.core.models import (
    Snapshot,
    Training,
)
from xonar_prefect.core.planning import Board
from xonar_prefect.core.planning.places import Place, age_key, is_later
from xonar_prefect.core.planning.waiting import Reserving
from xonar_prefect.core.simulation.result import Outcome

_SAME_MOMENT_S = 1e-6


class OvertakingWatch:
    """Watches a simulation for releases to a place that an overdue, older training could have had.

    One that may still start elsewhere was not overtaken: its policy leaves it held.

    Attributes:
        count: How many there were.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, snapshot: Snapshot, decisions: tuple[Decision, ...]) -> None:
        """Look at a snapshot and what was decided about it."""
        releases = [each for each in decisions if isinstance(each, Release) and each.devices]
        if not releases:
            return
        released = {each.training.run_id for each in releases}
        overdue = _overdue(snapshot, released)
        fronts = _oldest_of_each_kind(overdue)
        for release in releases:
            older = [each for each in fronts if is_later(release.training, each)]
            if any(
                _is_overtaken(snapshot, each, release.devices, releases, overdue) for each in older
            ):
                self.count += 1


def _overdue(snapshot: Snapshot, released: set[str]) -> list[Training]:
    """Return overdue trainings that stay held, the oldest first."""
    limit = snapshot.limits.max_wait_seconds
    return sorted(
        (
            training
            for training in snapshot.held
            if snapshot.now_s - training.submitted_at_s > limit
            and training.run_id not in released
            and training.gpus > 0
        ),
        key=age_key,
    )


def _oldest_of_each_kind(overdue: Sequence[Training]) -> list[Training]:
    oldest: dict[object, Training] = {}
    for training in overdue:
        oldest.setdefault(training.traits, training)
    return list(oldest.values())


def _is_overtaken(
    snapshot: Snapshot,
    training: Training,
    devices: Sequence[str],
    releases: Sequence[Release],
    overdue: Sequence[Training],
) -> bool:
    """Tell whether a training could have gone to one of these devices, and can go nowhere now.

    Older ones have gone before it, or have devices reserved, whose start it may not delay. One that
    may still start elsewhere is held by its policy, not by who was released.
    """
    older = [each for each in overdue if age_key(each) < age_key(training)]
    board = Board(
        replace(snapshot, held=(*older, training)), slots=snapshot.limits.max_trainings_per_gpu
    )
    kind = board.queue.kind_of(training)

    def fits(places: Iterable[Place]) -> bool:
        return any(board.option(kind, training, place) is not None for place in places)

    # of those submitted at the same moment the policy chooses
    before = [each for each in releases if not is_later(each.training, training)]
    after = [each for each in releases if is_later(each.training, training)]
    there = [place for place in board.places if place.device.id in devices]
    for release in before:
        board.put(release)
    if not fits(there):
        return False
    reserving = Reserving(board)
    for each in older:
        older_kind = board.queue.kind_of(each)
        if not reserving.keep(older_kind, each) and not reserving.is_over:
            reserving.reserve(older_kind, each)
    if not fits(there):
        return False
    for release in after:
        board.put(release)
    return not fits(board.places)


def waited_beyond_bound(outcomes: Sequence[Outcome], max_wait_seconds: float) -> int:
    """Count who waited longer than `max_wait` and the drain of what is older or ran by then.

    Only a training that was submitted later, and released when they were overdue, can have kept
    them. It catches gangs, for which devices have to be collected.
    """
    return sum(_waited_too_long(each, outcomes, max_wait_seconds) for each in outcomes)


def _waited_too_long(
    training: Outcome, outcomes: Sequence[Outcome], max_wait_seconds: float
) -> bool:
    overdue_at_s = training.submission.submitted_at_s + max_wait_seconds
    if training.started_at_s <= overdue_at_s + _SAME_MOMENT_S:
        return False
    drained_at_s = max(
        (
            each.finished_at_s
            for each in outcomes
            if each.started_at_s <= overdue_at_s + _SAME_MOMENT_S
            or each.submission.submitted_at_s < training.submission.submitted_at_s
        ),
        default=overdue_at_s,
    )
    return training.started_at_s > drained_at_s + _SAME_MOMENT_S
