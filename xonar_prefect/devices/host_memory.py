"""Memory of the host, of the control group that limits us, and of single processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What processes here can have in all, and what they could still get, in bytes."""

    total_bytes: int
    available_bytes: int


def host_memory(
    *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> HostMemory:
    """Read the host's memory, or that of our control group (version 2) where it is lower.

    In a container the host's figures promise what the kernel will not give: there the limit of
    the group, or of one above it, is the total. Its file cache counts as available, as the
    host's does.
    """
    import psutil

    host = psutil.virtual_memory()
    total_bytes, available_bytes = host.total, host.available
    for group in _own_groups(proc, cgroups):
        limit_bytes = _number(group / "memory.max")
        used_bytes = _number(group / "memory.current")
        if limit_bytes is None or used_bytes is None:
            continue
        cache_bytes = _statistic(group / "memory.stat", "inactive_file")
        total_bytes = min(total_bytes, limit_bytes)
        available_bytes = min(available_bytes, max(0, limit_bytes - used_bytes + cache_bytes))
    return HostMemory(total_bytes=total_bytes, available_bytes=available_bytes)


def anonymous_bytes(pid: int, *, proc: Path = Path("/proc")) -> int | None:
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


def _own_groups(proc: Path, cgroups: Path) -> list[Path]:
    """Return the directories of our group and of those above it, as far as they are shown."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        if line.startswith("0::"):
            parts = [part for part in line[3:].split("/") if part not in ("", "..")]
            return [cgroups.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return []


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or `max`: no limit
        return None


def _statistic(file: Path, name: str) -> int:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
