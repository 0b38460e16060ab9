"""Process trees of trainings: found by their environment, whatever session they are in."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import psutil

from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE

_MARKER = f"{RUN_DIRECTORY_VARIABLE}=".encode()


def boot_id() -> str:
    """Return the id of this boot of the host: process ids mean nothing across boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone.

    Together with the process id it identifies a process for as long as the host runs.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields_after_name = stat.rpartition(")")[2].split()
    state, start_time = fields_after_name[0], int(fields_after_name[19])
    return None if state == "Z" else start_time


class ProcessTrees:
    """Finds the processes of every run directory on this host.

    A training's processes carry the run directory in their environment, which children inherit
    also across sessions and re-parenting. A process that cleared its environment is found as a
    descendant of one that carries it. What a process carries does not change, so it is read once.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], str | None] = {}

    def scan(self) -> dict[str, list[int]]:
        """Return the living process ids by run directory."""
        trees: defaultdict[str, list[int]] = defaultdict(list)
        parents: dict[int, int] = {}
        marked: dict[int, str] = {}
        alive: dict[tuple[int, int], str | None] = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            pid = int(entry.name)
            identity = self._identity(pid)
            if identity is None:
                continue
            parent, ticks = identity
            parents[pid] = parent
            key = (pid, ticks)
            marker = self._seen[key] if key in self._seen else self._marker(pid)
            alive[key] = marker
            if marker is not None:
                marked[pid] = marker
        self._seen = alive
        for pid in parents:
            owner = self._owner(pid, parents, marked)
            if owner is not None:
                trees[owner].append(pid)
        return dict(trees)

    @staticmethod
    def _identity(pid: int) -> tuple[int, int] | None:
        """Return (parent, start ticks) of a process that is not a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        after_name = stat.rpartition(")")[2].split()
        return None if after_name[0] == "Z" else (int(after_name[1]), int(after_name[19]))

    @staticmethod
    def _marker(pid: int) -> str | None:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return None
        for variable in environment.split(b"\0"):
            if variable.startswith(_MARKER):
                return os.fsdecode(variable[len(_MARKER) :])
        return None

    @staticmethod
    def _owner(pid: int, parents: dict[int, int], marked: dict[int, str]) -> str | None:
        while pid in parents:
            if pid in marked:
                return marked[pid]
            pid = parents[pid]
        return None


def resident_mib(pids: Iterable[int]) -> int:
    """Return the resident memory of these processes in whole MiB, rounded up."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return -(-total // 2**20)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes of ours; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
