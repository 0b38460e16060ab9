"""Counts who took the place of a training that had waited longer than `max_wait`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xonar_prefect.core.models import Decision, Release, Snapshot, Training
from xonar_prefect.core.planning import Board
from xonar_prefect.core.planning.kinds import kind_key
from xonar_prefect.core.planning.places import age_key
from xonar_prefect.core.simulation.result import Outcome

_SAME_MOMENT_S = 1e-6


class OvertakingWatch:
    """Watches a simulation for releases to a place that an overdue, older training could have had.

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
        overdue = _oldest_of_each_kind(snapshot, released)
        for release in releases:
            older = [each for each in overdue if age_key(each) < age_key(release.training)]
            if any(_could_start(snapshot, each, release.devices) for each in older):
                self.count += 1


def _oldest_of_each_kind(snapshot: Snapshot, released: set[str]) -> list[Training]:
    """Return overdue trainings that stay held; of those alike, the oldest."""
    limit = snapshot.limits.max_wait_seconds
    oldest: dict[object, Training] = {}
    for training in snapshot.held:
        overdue = snapshot.now_s - training.submitted_at_s > limit
        if overdue and training.run_id not in released:
            known = oldest.setdefault(kind_key(training), training)
            if age_key(training) < age_key(known):
                oldest[kind_key(training)] = training
    return list(oldest.values())


def _could_start(snapshot: Snapshot, training: Training, devices: Sequence[str]) -> bool:
    """Tell whether a training could have gone to one of these devices in its stead."""
    board = Board(replace(snapshot, held=(training,)), slots=snapshot.limits.max_trainings_per_gpu)
    ((kind, front),) = board.queue
    return any(
        place.device.id in devices and board.option(kind, front, place) is not None
        for place in board.places
    )


def delays_by_later(outcomes: Sequence[Outcome], max_wait_seconds: float) -> int:
    """Count trainings that started when one left that was submitted and released too late for it.

    That is: released on a device that the older one got next, when the older one was overdue
    already. It catches gangs, for which devices have to be collected.
    """
    leaving: dict[str, list[Outcome]] = {}
    for each in outcomes:
        for device in each.devices:
            leaving.setdefault(device, []).append(each)
    return sum(_was_delayed(each, leaving, max_wait_seconds) for each in outcomes)


def _was_delayed(
    older: Outcome, leaving: dict[str, list[Outcome]], max_wait_seconds: float
) -> bool:
    submitted_at_s = older.submission.submitted_at_s
    return any(
        abs(later.finished_at_s - older.started_at_s) <= _SAME_MOMENT_S
        and later.submission.submitted_at_s > submitted_at_s
        and later.started_at_s > submitted_at_s + max_wait_seconds + _SAME_MOMENT_S
        for device in older.devices
        for later in leaving[device]
    )
