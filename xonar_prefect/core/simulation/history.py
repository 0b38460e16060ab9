"""From what a pool has recorded of its runs to a queue that can be simulated again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from xonar_prefect.core.ledger import CoRun
from xonar_prefect.core.models import Profile
from xonar_prefect.core.simulation.world import Submission

Profiles = Mapping[str, Mapping[str, Profile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A completed training as it really ran; times in seconds since the epoch.

    Attributes:
        name: Its name.
        kind: Its profile key, or what stands for it where that was never known.
        device_model: Model of its devices.
        gpus: How many it had.
        submitted_at_s: When it was submitted.
        released_at_s: When it was released (for the last time).
        ended_at_s: When its command ended.
        priority: Priority of its work queue.
        owner: Whose it was.
        steps: Steps it made; None when unknown.
        stepping_seconds: Time it spent in them; None when unknown.
        co_runs: Its windows alone and beside partners.
    """

    name: str
    kind: str
    device_model: str
    gpus: int
    submitted_at_s: float
    released_at_s: float
    ended_at_s: float
    priority: int = 1
    owner: str | None = None
    steps: int | None = None
    stepping_seconds: float | None = None
    co_runs: tuple[CoRun, ...] = ()

    @property
    def seconds(self) -> float:
        """From its release to its end."""
        return max(0.0, self.ended_at_s - self.released_at_s)

    @property
    def known_stepping_seconds(self) -> float | None:
        """Time in steps: as it reported, else what its windows add up to."""
        if self.steps and self.stepping_seconds:
            return min(self.stepping_seconds, self.seconds)
        return math.fsum(run.seconds for run in self.co_runs) or None

    @property
    def startup_seconds(self) -> float | None:
        """What it did besides its steps: starting up, validating, saving; None when unknown."""
        stepping = self.known_stepping_seconds
        return None if stepping is None else self.seconds - stepping

    @property
    def known_steps(self) -> int | None:
        """Steps made: as it reported, else what its windows add up to."""
        if self.steps and self.stepping_seconds:
            return self.steps
        return sum(run.steps for run in self.co_runs) or None

    def step_seconds_alone(self, profiles: Profiles) -> float | None:
        """Return its step time alone: its own where it was measured, else that of its profile."""
        alone = [run for run in self.co_runs if not run.partners and run.step_seconds]
        profile = profiles.get(self.kind, {}).get(self.device_model)
        known = None if profile is None else profile.step_seconds
        own = max(alone, key=lambda run: run.steps, default=None)
        if own is not None and (profile is None or known is None or own.steps >= profile.steps):
            return own.step_seconds
        return known


def submissions_of(
    runs: Sequence[RecordedRun], profiles: Profiles
) -> tuple[list[Submission], float]:
    """Return what would be submitted again, from second 0 on, and the usual start-up time.

    Of a run without any record of steps the usual start-up is taken off, and the rest was
    training.

    Args:
        runs: Completed runs.
        profiles: Profiles by kind, then device model.
    """
    first_s = min((run.submitted_at_s for run in runs), default=0.0)
    usual = usual_startup_seconds(runs) or 0.0
    ordered = sorted(runs, key=lambda run: (run.submitted_at_s, run.name))
    return [_submission(run, profiles, first_s, usual) for run in ordered], usual


def usual_startup_seconds(runs: Iterable[RecordedRun]) -> float | None:
    """Return the median start-up time of those of which it is known; None if it is of none."""
    known = [startup for run in runs if (startup := run.startup_seconds) is not None]
    return median(known) if known else None


def _submission(
    run: RecordedRun, profiles: Profiles, first_s: float, usual_startup_s: float
) -> Submission:
    steps, alone = run.known_steps, run.step_seconds_alone(profiles)
    startup = run.startup_seconds
    if startup is None:
        startup = min(usual_startup_s, run.seconds)
    solo = run.seconds - startup
    if steps is not None and alone is not None:
        solo = steps * alone
    return Submission(
        name=run.name,
        kind=run.kind,
        submitted_at_s=max(0.0, run.submitted_at_s - first_s),
        solo_seconds=solo,
        gpus=run.gpus,
        priority=run.priority,
        owner=run.owner,
        startup_seconds=startup,
    )


def with_startup(
    submissions: Iterable[Submission], startup_seconds: float | None
) -> tuple[Submission, ...]:
    """Return the submissions with another start-up time; None leaves each its own."""
    if startup_seconds is None:
        return tuple(submissions)
    return tuple(replace(each, startup_seconds=startup_seconds) for each in submissions)


def slowdowns_of(
    runs: Iterable[RecordedRun], profiles: Profiles, least_steps: int
) -> dict[tuple[str, str, str], float]:
    """Return how kinds were really slowed down beside one partner, as normalised throughput.

    Keys are device model, kind and partner's kind; windows of the same three are averaged by
    steps.

    Args:
        runs: Completed runs.
        profiles: Profiles by kind, then device model.
        least_steps: Fewer steps together are no measurement.
    """
    steps: dict[tuple[str, str, str], float] = {}
    alone_seconds: dict[tuple[str, str, str], float] = {}
    together_seconds: dict[tuple[str, str, str], float] = {}
    for run in runs:
        alone = run.step_seconds_alone(profiles)
        for window in run.co_runs:
            if alone is None or len(window.partner_keys) != 1 or not window.partner_keys[0]:
                continue
            at = (run.device_model, run.kind, window.partner_keys[0])
            steps[at] = steps.get(at, 0.0) + window.steps
            alone_seconds[at] = alone_seconds.get(at, 0.0) + alone * window.steps
            together_seconds[at] = together_seconds.get(at, 0.0) + window.seconds
    return {
        at: alone_seconds[at] / together_seconds[at]
        for at, count in steps.items()
        if count >= least_steps and together_seconds[at] > 0
    }
