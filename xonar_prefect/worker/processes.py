"""Process trees of trainings: found by their environment, whatever session they are in."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, RunDirectory

_MARKER = f"{RUN_DIRECTORY_VARIABLE}=".encode()
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_YOUNG_SECONDS = 5.0


@functools.cache
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


def lives(pid: int | None, ticks: int | None, boot: str | None) -> bool:
    """Tell whether the process that had this id, start time and boot is still there.

    One without a start time had ended before somebody looked.
    """
    if pid is None or ticks is None:
        return False
    return boot == boot_id() and started_ticks(pid) == ticks


class ProcessTrees:
    """Finds the processes of every run directory on this host.

    A training's processes carry the run directory in their environment, which children inherit
    also across sessions and re-parenting. A process that cleared its environment is found by its
    output, which goes to the run directory's file, or as a descendant of one that was found.
    """

    def __init__(self) -> None:
        # Reading the environment of every process of a host at every look would be too much.
        self._seen: dict[tuple[int, int], str | None] = {}

    def scan(self) -> dict[str, list[int]]:
        """Return the living process ids by run directory."""
        identities = {
            pid: identity
            for entry in os.scandir("/proc")
            if entry.name.isdigit() and (identity := self._identity(pid := int(entry.name)))
        }
        markers = {pid: self._marker(pid, ticks) for pid, (_, ticks) in identities.items()}
        trees: defaultdict[str, list[int]] = defaultdict(list)
        seen: dict[tuple[int, int], str | None] = {}
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SECOND
        for pid, (_, ticks) in identities.items():
            owner = self._owner(pid, identities, markers)
            if owner is not None:
                trees[owner].append(pid)
            # Between fork and exec a process still shows its parent's environment.
            if owner is not None or now_ticks - ticks > _YOUNG_SECONDS * _TICKS_PER_SECOND:
                seen[pid, ticks] = owner
        self._seen = seen
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

    def _marker(self, pid: int, ticks: int) -> str | None:
        if (pid, ticks) in self._seen:
            return self._seen[pid, ticks]
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return None
        for variable in environment.split(b"\0"):
            if variable.startswith(_MARKER):
                return os.fsdecode(variable[len(_MARKER) :])
        return self._output_of(pid)

    @staticmethod
    def _output_of(pid: int) -> str | None:
        """Return the run directory that a process writes its output to, if it does."""
        for descriptor in (1, 2):
            try:
                target = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
            except OSError:
                continue
            directory = RunDirectory(target.parent)
            if target == directory.output and directory.is_launched:
                return str(directory.path)
        return None

    @staticmethod
    def _owner(
        pid: int, identities: Mapping[int, tuple[int, int]], markers: Mapping[int, str | None]
    ) -> str | None:
        while pid in identities:
            if (marker := markers[pid]) is not None:
                return marker
            pid = identities[pid][0]
        return None


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes of ours; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
