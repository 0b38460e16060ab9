"""Profiles as CSV: `training, gpu_model, active_ms, idle_ms, step_ms, peak_memory_mib`."""

from __future__ import annotations

import math
from pathlib import Path

from xonar_prefect.core.models import Profile
from xonar_prefect.files.rows import Row, read_rows

COLUMNS = ("training", "gpu_model", "active_ms", "idle_ms", "step_ms", "peak_memory_mib")
OPTIONAL_COLUMNS = ("flow", "task")

_ROUNDING = 0.01
"""Share of a step by which active and idle time may miss it; figures are rounded."""


def read_profiles(path: Path) -> dict[str, dict[str, Profile]]:
    """Read profiles by training, then GPU model.

    Raises:
        FileUnreadableError: The file cannot be read.
        FileContentError: A row is wrong, contradicts itself or repeats an earlier one, or there
            is none.
    """
    found: dict[str, dict[str, Profile]] = {}
    lines: dict[tuple[str, str], int] = {}
    for row in read_rows(path, COLUMNS):
        profile = profile_of(row)
        at = (profile.key, profile.device_model)
        if at in lines:
            raise row.wrong(
                "training",
                f"repeats {at[0]!r} on {at[1]!r} of line {lines[at]}; a training has one row for "
                "each GPU model",
            )
        lines[at] = row.line
        found.setdefault(profile.key, {})[profile.device_model] = profile
    return found


def profile_of(row: Row) -> Profile:
    """Return the profile in a row.

    Raises:
        FileContentError: A cell is wrong, or the times contradict each other.
    """
    active = row.optional_number("active_ms")
    idle = row.optional_number("idle_ms")
    step = row.optional_number("step_ms", positive=True)
    if active is not None and idle is not None:
        together = active + idle
        if step is not None and abs(together - step) > _ROUNDING * step:
            raise row.wrong(
                "step_ms", f"is {step:g}, but active_ms and idle_ms add up to {together:g}"
            )
        if together == 0:
            raise row.wrong("active_ms", "and idle_ms are both zero; a step takes time")
        step = together if step is None else step
    elif step is not None and (active if active is not None else idle or 0.0) > step:
        raise row.wrong("step_ms", f"is {step:g}, which is less than a part of it")
    elif step is not None and (active is not None or idle is not None):
        active = active if active is not None else step - (idle or 0.0)
        idle = step - active
    fraction = None if active is None or idle is None else active / (active + idle)
    peak = row.optional_number("peak_memory_mib", positive=True)
    return Profile(
        key=row.text("training"),
        device_model=row.text("gpu_model"),
        active_fraction=fraction,
        step_seconds=None if step is None else step / 1000.0,
        peak_memory_mib=None if peak is None else math.ceil(peak),
    )


def row_of(profile: Profile) -> dict[str, str]:
    """Return a profile's cells by column; what CSV has no column for is left out.

    The active fraction is written as times, so it is lost where the step time is unknown.
    """
    step, active = profile.step_seconds, profile.active_seconds
    peak = profile.peak_memory_mib
    return {
        "training": profile.key,
        "gpu_model": profile.device_model,
        "active_ms": "" if active is None else repr(active * 1000.0),
        "idle_ms": "" if step is None or active is None else repr((step - active) * 1000.0),
        "step_ms": "" if step is None else repr(step * 1000.0),
        "peak_memory_mib": "" if peak is None else str(peak),
    }
