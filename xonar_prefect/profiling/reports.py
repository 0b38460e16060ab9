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
from xonar_prefect.profiling.contention import (
    Contention,
    displaced_fraction,
    together,
    undisturbed_fraction,
)
from xonar_prefect.profiling.processes import processor_cores

_SUFFIX = ".profile.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one process found out.

    Attributes:
        pid: Its process id.
        rank: Its place among the workers of a distributed training; None when it has none.
        on_gpu: Whether it computes on a GPU.
        profile: What was measured so far.
        raw_active_fraction: Its active fraction before anything was said of others on the cores.
        contention: What the kernel counted meanwhile; None when unknown.
    """

    pid: int
    rank: int | None
    on_gpu: bool
    profile: Profile
    raw_active_fraction: float | None = None
    contention: Contention | None = None

    def write(self, directory: Path) -> None:
        """Replace this process's report; raises OSError."""
        target = directory / f"{self.pid}{_SUFFIX}"
        partial = target.with_suffix(".tmp")
        data = {
            "pid": self.pid,
            "rank": self.rank,
            "on_gpu": self.on_gpu,
            "profile": profile_to_dict(self.profile),
            "raw_active_fraction": self.raw_active_fraction,
            "contention": self.contention,
        }
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(target)


def own_rank() -> int | None:
    """Return this process's place among the workers, as their launchers tell it."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        if (value := os.environ.get(name, "")).isdigit():
            return int(value)
    try:
        return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    except (KeyError, TypeError, ValueError):
        return None


def read_reports(directory: Path) -> list[Report]:
    """Read what is there, the chief first; what is damaged or cut off is left out."""
    reports = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            profile = profile_from_dict(data["profile"])
            reports.append(
                Report(
                    pid=int(data["pid"]),
                    rank=data["rank"],
                    on_gpu=bool(data["on_gpu"]),
                    profile=profile,
                    raw_active_fraction=data["raw_active_fraction"],
                    contention=None
                    if data["contention"] is None
                    else Contention(*data["contention"]),
                )
            )
        except (OSError, KeyError, TypeError, ValueError):
            continue
    return sorted(
        reports, key=lambda each: (math.inf if each.rank is None else each.rank, each.pid)
    )


def merge(reports: Sequence[Report]) -> Profile | None:
    """Return what the processes amount to on the device; None where none took a step.

    Processor time adds up, since all of them run on the same cores. On GPUs of their own the
    busiest one counts: a gang is as slow as it. So does the slowest step.
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
        peak_memory_mib=_together(profiles, on_gpu=on_gpu),
        steps=min(each.steps for each in profiles),
    )
    if on_gpu:
        busiest = max(profiles, key=lambda each: each.active_fraction or 0.0)
        active, interval = busiest.active_fraction, busiest.active_fraction_interval
    else:
        active, interval = _sum_of_active(stepping)
    return _with_activity(merged, profiles, active, interval)


def _together(profiles: Sequence[Profile], *, on_gpu: bool) -> int | None:
    peaks = [each.peak_memory_mib for each in profiles if each.peak_memory_mib is not None]
    if len(peaks) < len(profiles):
        return None
    return max(peaks) if on_gpu else sum(peaks)


def _sum_of_active(
    reports: Sequence[Report],
) -> tuple[float | None, tuple[float, float] | None]:
    fractions = [
        each.raw_active_fraction for each in reports if each.raw_active_fraction is not None
    ]
    if len(fractions) < len(reports):
        return None, None
    counted = [
        each.contention for each in reports if each.contention and each.contention.elapsed_s > 0
    ]
    displaced = 0.0
    if len(counted) == len(reports):
        displaced = displaced_fraction(together(counted), processor_cores())
    active = undisturbed_fraction(min(1.0, sum(fractions)), displaced)
    intervals = [each.profile.active_fraction_interval for each in reports]
    halves = [(high - low) / 2 for low, high in (each for each in intervals if each)]
    if len(halves) < len(reports):
        return active, None
    half = math.hypot(*halves)
    return active, (max(0.0, active - half), min(1.0, active + half))


def _with_activity(
    merged: Profile,
    profiles: Sequence[Profile],
    active: float | None,
    interval: tuple[float, float] | None,
) -> Profile:
    """Fill the idle time of the step in the proportions that the processes had on average."""
    unknown = replace(
        merged,
        active_fraction=active,
        active_fraction_interval=interval,
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
