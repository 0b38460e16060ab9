"""Processor time and resident memory of a process and all its descendants."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import psutil

_MIB = 1024 * 1024
_PEAK_FIELD = "VmHWM:"


def processor_cores() -> int:
    """Return the number of processor cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _processor_clock(pid: int) -> int:
    """Return the id of another process's CPU clock, as `clock_getcpuclockid` computes it.

    Unlike /proc/PID/stat, which counts in ticks of 10 ms, it has nanoseconds, and reading it
    costs a microsecond: steps are often shorter than a tick.
    """
    return (~pid << 3) | 2


class ProcessTree:
    """This process with its descendants; may be read by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root = psutil.Process()
        self._children: dict[int, psutil.Process] = {}
        self._last_seconds: dict[int, float] = {}
        self._ended_seconds = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Look for descendants; costs milliseconds, so it is done now and then."""
        try:
            children = {process.pid: process for process in self._root.children(recursive=True)}
        except psutil.Error:
            return
        with self._lock:
            self._children = children
            # Processes that ended keep what they were last seen to have used.
            for pid in [pid for pid in self._last_seconds if pid not in children]:
                self._ended_seconds += self._last_seconds.pop(pid)

    def processor_seconds(self) -> float:
        """Return the processor time of the tree; microseconds per process."""
        with self._lock:
            total = time.process_time() + self._ended_seconds
            for pid in self._children:
                with contextlib.suppress(OSError):  # it may just have ended
                    self._last_seconds[pid] = time.clock_gettime(_processor_clock(pid))
                total += self._last_seconds.get(pid, 0.0)
        return total

    def resident_mib(self) -> int:
        """Return the resident memory of the tree."""
        total = 0
        for process in (self._root, *self._children.values()):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total // _MIB


def own_peak_resident_mib() -> int | None:
    """Return the peak of this process's own resident memory; None where it is not told."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(_PEAK_FIELD):
            return int(line.removeprefix(_PEAK_FIELD).split()[0]) // 1024
    return None
