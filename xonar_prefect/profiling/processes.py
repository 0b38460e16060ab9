"""Processor time and resident memory of a process and all its descendants."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from xonar_prefect.profiling.contention import Account, busy_ticks

_MIB = 1024 * 1024
_PEAK_FIELD = "VmHWM:"
_NANOSECONDS = 1e9

ONE_CORE = "1 processor core"
NO_GPU = "cpu"
"""Device model of a command that computes on processor cores."""


def processor_cores() -> int:
    """Return the number of processor cores this process may run on."""
    return len(os.sched_getaffinity(0))


def describe_cores() -> str:
    """Name the processor cores that this process may run on."""
    cores = processor_cores()
    return ONE_CORE if cores == 1 else f"{cores} processor cores"


def command_below(starter: int) -> int:
    """Return the process that `starter` started and that this one descends from, or is.

    Without one, as where it was left behind by a parent that has ended, it is this one.
    """
    pid = os.getpid()
    with contextlib.suppress(psutil.Error):
        above = psutil.Process(pid)
        while (parent := above.parent()) is not None:
            if parent.pid == starter:
                return above.pid
            above = parent
    return pid


def _processor_clock(pid: int) -> int:
    """Return the id of another process's CPU clock, as `clock_getcpuclockid` computes it.

    Unlike /proc/PID/stat, which counts in ticks of 10 ms, it has nanoseconds, and reading it
    costs a microsecond: steps are often shorter than a tick.
    """
    return (~pid << 3) | 2


def used_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of all that they have started and waited for.

    The kernel counts it in ticks of 10 ms, so it is for longer times than a step.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class ProcessTree:
    """A process with its descendants, this one by default; may be read by several threads.

    What a descendant did before it was found is left out: it would all seem to have happened in the
    step in which it is found.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._lock = threading.Lock()
        self._root = psutil.Process(pid)
        self._pids = [self._root.pid]
        self._first_seconds: dict[int, float] = {self._root.pid: 0.0}
        self._last_seconds: dict[int, float] = {}
        self._ended_seconds = 0.0
        self.refresh()

    @property
    def root(self) -> int:
        """Process id of its first process."""
        return self._root.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, as they were when last looked for."""
        return tuple(self._pids)

    def refresh(self) -> None:
        """Look for descendants.

        Where there are any it reads a file of every process of the host, which takes milliseconds
        or tens of them; so it is done now and then.
        """
        pids = [self._root.pid]
        if self._root.pid != os.getpid() or _has_children():
            try:
                pids += [each.pid for each in self._root.children(recursive=True)]
            except psutil.Error:
                return
        with self._lock:
            self._pids = pids
            # Processes that ended keep what they were last seen to have used.
            for pid in [pid for pid in self._last_seconds if pid not in pids]:
                self._ended_seconds += self._last_seconds.pop(pid) - self._first_seconds.pop(pid)
            for pid in pids:
                if pid not in self._first_seconds:
                    with contextlib.suppress(OSError):
                        self._first_seconds[pid] = time.clock_gettime(_processor_clock(pid))

    def processor_seconds(self) -> float:
        """Return the processor time of the tree; microseconds per process."""
        with self._lock:
            for pid in self._first_seconds:
                with contextlib.suppress(OSError):  # it may just have ended
                    self._last_seconds[pid] = time.clock_gettime(_processor_clock(pid))
            return self._ended_seconds + sum(
                seconds - self._first_seconds[pid] for pid, seconds in self._last_seconds.items()
            )

    def account(self) -> Account:
        """Return what the kernel has counted of the tree and of the cores that we may use.

        It looks for descendants first, and reads a file of every thread, which takes a millisecond
        where there are a hundred.

        Raises:
            OSError: The kernel does not tell.
        """
        self.refresh()
        cores = os.sched_getaffinity(0)
        ticks = busy_ticks(Path("/proc/stat").read_text(encoding="ascii"), cores)
        return Account(
            at_s=time.perf_counter(),
            own_seconds=self.processor_seconds(),
            busy_seconds=ticks / os.sysconf("SC_CLK_TCK"),
            threads={
                thread: times for pid in self.pids for thread, times in _times_of_threads(pid)
            },
            cores=len(cores),
        )

    def resident_mib(self) -> int:
        """Return the resident memory of the tree."""
        total = 0
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total // _MIB


def _has_children() -> bool:
    """Tell whether this process has any, without waiting for one or taking its end from others."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _times_of_threads(pid: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield for each thread how long it ran, and how long it was ready to run and did not."""
    with contextlib.suppress(OSError):  # the process may just have ended
        for thread in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                times = Path(thread.path, "schedstat").read_text(encoding="ascii").split()
                yield thread.path, (int(times[0]) / _NANOSECONDS, int(times[1]) / _NANOSECONDS)


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
