"""What the processes of one command report of themselves, and what they amount to together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xonar_prefect.core.codec import profile_from_dict, profile_to_dict
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.counting import Progress
from xonar_prefect.run_directory import RunDirectory, Status

_SUFFIX = ".profile.json"
_UNWATCHED = ".unwatched"  # written by the injected module, which cannot import this one
_PROGRESS = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one process found out.

    Attributes:
        pid: Its process id.
        rank: Its place among the workers of a distributed training; None when it has none.
        on_gpu: Whether it computes on a GPU.
        profile: What was measured so far; on the processor its active fraction is that of all
            processes of the command.
        descendants: Processes that it started, as far as known; its peak memory has theirs in it.
        settled: Enough was measured.
        started_at_s: When the measured steps began, seconds since the epoch.
    """

    pid: int
    rank: int | None
    on_gpu: bool
    profile: Profile
    descendants: tuple[int, ...] = ()
    settled: bool = False
    started_at_s: float | None = None

    def write(self, directory: Path) -> None:
        """Replace this process's report; raises OSError."""
        target = directory / f"{self.pid}{_SUFFIX}"
        partial = target.with_suffix(".tmp")
        data = {
            "pid": self.pid,
            "rank": self.rank,
            "on_gpu": self.on_gpu,
            "profile": profile_to_dict(self.profile),
            "descendants": self.descendants,
            "settled": self.settled,
            "started_at_s": self.started_at_s,
        }
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(target)


def own_rank() -> int | None:
    """Return this process's place among the workers, as their launchers tell it."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        if (value := os.environ.get(name, "")).isdigit():
            return int(value)
    try:
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        # Chief and workers are counted from 0 each.
        return int(task["index"]) + int(task["type"] != "chief")
    except (KeyError, TypeError, ValueError):
        return None


def read_reports(directory: Path) -> list[Report]:
    """Read what is there, the chief first; what is damaged, cut off or gone is left out."""
    try:
        paths = sorted(directory.glob(f"*{_SUFFIX}"))
    except OSError:
        return []
    reports = []
    for path in paths:
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            profile = profile_from_dict(data["profile"])
            reports.append(
                Report(
                    pid=int(data["pid"]),
                    rank=data["rank"],
                    on_gpu=bool(data["on_gpu"]),
                    profile=profile,
                    descendants=tuple(data["descendants"]),
                    settled=bool(data["settled"]),
                    started_at_s=data["started_at_s"],
                )
            )
        except (OSError, KeyError, TypeError, ValueError):
            continue
    return sorted(
        reports, key=lambda each: (math.inf if each.rank is None else each.rank, each.pid)
    )


def read_unwatched(directory: Path) -> tuple[str, ...]:
    """Return why processes could not be watched that were meant to be, each reason once."""
    notes = sorted(directory.glob(f"*{_UNWATCHED}"))
    return tuple(dict.fromkeys(note.read_text("utf-8", "replace") for note in notes))


def merge(reports: Sequence[Report]) -> Profile | None:
    """Return what the processes amount to on the device; None where none took a step.

    Each of them knows the processor time of all, so the chief's account counts. On GPUs of their
    own the busiest one does: a gang is as slow as it. So does the slowest step.
    """
    stepping = [report for report in reports if report.profile.steps > 0]
    if not stepping:
        return None
    chief = stepping[0].profile
    if len(stepping) == 1:
        return chief
    profiles = [report.profile for report in stepping]
    slowest = max(profiles, key=lambda each: each.step_seconds or 0.0)
    on_gpu = any(report.on_gpu for report in stepping)
    merged = replace(
        chief,
        step_seconds=slowest.step_seconds,
        step_seconds_interval=slowest.step_seconds_interval,
        peak_memory_mib=_peak_memory_mib(stepping, on_gpu=on_gpu),
        steps=min(each.steps for each in profiles),
    )
    busiest = max(profiles, key=lambda each: each.active_fraction or 0.0) if on_gpu else chief
    return _with_activity(merged, profiles, busiest)


def progress_directory(directory: Path) -> RunDirectory | None:
    """Make the directory into which this process writes its status; None where that fails."""
    own = directory / _PROGRESS / str(os.getpid())
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return RunDirectory(own)


def read_statuses(directory: Path) -> list[Status]:
    """Read the status of every process that has taken a step."""
    try:
        found = [RunDirectory(own).read_status() for own in (directory / _PROGRESS).iterdir()]
    except OSError:
        return []
    return [status for status in found if status is not None and status.steps_done > 0]


def progress_of(statuses: Sequence[Status]) -> tuple[Progress, int | None]:
    """Return the steps of all processes together, and how many it will be; None when unknown.

    Those that step at the same time are workers of one training: the furthest of them counts.
    Trainings that follow one another add up.
    """
    trainings: list[list[Status]] = []
    for status in sorted(statuses, key=_began_s):
        if trainings and _began_s(status) < max(map(_stepped_s, trainings[-1])):
            trainings[-1].append(status)
        else:
            trainings.append([status])
    furthest = [max(each, key=lambda status: status.steps_done) for each in trainings]
    if not furthest:
        return Progress(), None
    steps_done = sum(status.steps_done for status in furthest)
    latest = furthest[-1]
    total = latest.steps_total
    progress = Progress(
        steps_done=steps_done,
        stepping_seconds=sum(status.stepping_seconds for status in furthest),
        last_step_at_s=max(map(_stepped_s, statuses)),
    )
    return progress, None if total is None else total + steps_done - latest.steps_done


def _stepped_s(status: Status) -> float:
    return status.last_step_at_s or 0.0


def _began_s(status: Status) -> float:
    """Return when its steps began at the latest; there may have been pauses between them."""
    return _stepped_s(status) - status.stepping_seconds


def _peak_memory_mib(reports: Sequence[Report], *, on_gpu: bool) -> int | None:
    peaks = {each.pid: each.profile.peak_memory_mib for each in reports}
    known = {pid: peak for pid, peak in peaks.items() if peak is not None}
    if len(known) < len(peaks):
        return None
    if on_gpu:
        return max(known.values())
    within_others = {pid for each in reports for pid in each.descendants}
    return sum(peak for pid, peak in known.items() if pid not in within_others)


def _with_activity(merged: Profile, profiles: Sequence[Profile], activity: Profile) -> Profile:
    """Fill the idle time of the step in the proportions that the processes had on average."""
    active = activity.active_fraction
    unknown = replace(
        merged,
        active_fraction=active,
        active_fraction_interval=activity.active_fraction_interval,
        communication_fraction=None,
        input_fraction=None,
        other_fraction=None,
    )
    shares = [
        (each.communication_fraction, each.input_fraction, each.other_fraction)
        for each in profiles
        if each.communication_fraction is not None
        and each.input_fraction is not None
        and each.other_fraction is not None
    ]
    if active is None or len(shares) < len(profiles):
        return unknown
    sums = [sum(share[index] or 0.0 for share in shares) for index in range(3)]
    total = sum(sums)
    scale = (1.0 - active) / total if total > 0 else 0.0
    return replace(
        unknown,
        communication_fraction=sums[0] * scale,
        input_fraction=sums[1] * scale,
        other_fraction=sums[2] * scale if total > 0 else 1.0 - active,
    )
