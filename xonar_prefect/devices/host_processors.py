"""How many threads of this host's processors may run at once for us."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path

from xonar_prefect.devices.control_groups import CONTROL_GROUPS, PROC, number, own_groups


def processor_threads(
    *,
    proc: Path = PROC,
    cgroups: Path = CONTROL_GROUPS,
    affinity: Callable[[], Collection[int]] = lambda: os.sched_getaffinity(0),
) -> int:
    """Return the processors this process may use, or the lower quota of its control group."""
    threads = len(affinity())
    for group in own_groups("cpu", proc=proc, cgroups=cgroups):
        quota = _quota(group)
        if quota is not None:
            threads = min(threads, max(1, math.ceil(quota)))
    return threads


def _quota(group: Path) -> float | None:
    """Return the processors that a group's quota comes to; None without one."""
    try:
        most, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(most) / int(period)
    except (OSError, ValueError):  # version 1, or `max`
        pass
    most_us, period_us = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
    if most_us is None or period_us is None or most_us <= 0 or period_us <= 0:
        return None
    return most_us / period_us
