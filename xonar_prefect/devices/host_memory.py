"""Memory of the host, of the control group that limits us, and of single processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from xonar_prefect.devices.control_groups import (
    CONTROL_GROUPS,
    PROC,
    number,
    own_groups,
    statistic,
)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What processes here can have in all, and what they could still get, in bytes."""

    total_bytes: int
    available_bytes: int


def host_memory(*, proc: Path = PROC, cgroups: Path = CONTROL_GROUPS) -> HostMemory:
    """Read the host's memory, or that of our control group where it is lower.

    In a container the host's figures promise what the kernel will not give: there the limit of
    the group, or of one above it, is the total. Its file cache counts as available, as the
    host's does.
    """
    import psutil

    host = psutil.virtual_memory()
    total_bytes, available_bytes = host.total, host.available
    for group in own_groups("memory", proc=proc, cgroups=cgroups):
        limit_bytes, used_bytes, cache_bytes = _limit(group)
        if limit_bytes is None or used_bytes is None:
            continue
        total_bytes = min(total_bytes, limit_bytes)
        available_bytes = min(available_bytes, max(0, limit_bytes - used_bytes + cache_bytes))
    return HostMemory(total_bytes=total_bytes, available_bytes=available_bytes)


def anonymous_bytes(pid: int, *, proc: Path = PROC) -> int | None:
    """Return the memory that only this process's end gives back; None when it is gone.

    That is its resident memory without mapped files and shared memory. Resident memory counts
    a library once for each process that maps it; the proportional share is exact, but takes 6 ms
    per GiB, in which the process cannot map memory, and this is read twice a second. Pages that
    a forked process still shares with its parent are counted for both.
    """
    try:
        _size, resident, shared, *_ = (proc / str(pid) / "statm").read_text("ascii").split()
    except (OSError, ValueError):  # gone, or going
        return None
    return max(0, int(resident) - int(shared)) * _PAGE_BYTES


def _limit(group: Path) -> tuple[int | None, int | None, int]:
    """Return limit, use, and the part of the use that is file cache, of either version."""
    if (group / "memory.max").exists():
        limit_bytes, used_bytes = number(group / "memory.max"), number(group / "memory.current")
        return limit_bytes, used_bytes, statistic(group / "memory.stat", "inactive_file")
    return (
        number(group / "memory.limit_in_bytes"),
        number(group / "memory.usage_in_bytes"),
        statistic(group / "memory.stat", "total_inactive_file"),
    )
