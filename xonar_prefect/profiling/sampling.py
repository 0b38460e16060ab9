"""Samples a process tree from outside: an estimate where no step can be seen."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from xonar_prefect.profiling.estimate import Estimator
from xonar_prefect.profiling.processes import ProcessTree, processor_cores, used_seconds

_SAMPLE_SECONDS = 0.5
# Importing a framework is no training; short commands are taken as they are.
_START_UP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What was seen of a command's processes.

    Attributes:
        active_fraction: Processor time over time and cores, its start left out where it ran long
            enough; None when nothing was sampled.
        active_fraction_interval: Its 95 % interval; None with fewer than two samples.
        peak_resident_mib: Highest resident memory of all of them together; None when unknown.
        peak_gpu_mib: Highest use of the GPUs, where somebody tells it per process.
    """

    active_fraction: float | None = None
    active_fraction_interval: tuple[float, float] | None = None
    peak_resident_mib: int | None = None
    peak_gpu_mib: int | None = None


class ProcessSampler:
    """Samples a process and its descendants from a thread of its own until it is stopped.

    Args:
        pid: The process, a child of this one.
        gpu_memory_mib: Tells what processes use on a GPU; None where nobody does.
    """

    def __init__(
        self, pid: int, gpu_memory_mib: Callable[[Sequence[int]], int | None] | None = None
    ) -> None:
        self._gpu_memory_mib = gpu_memory_mib
        self._stopped = threading.Event()
        self._all, self._later = Estimator(), Estimator()
        self._peak_mib = self._peak_gpu_mib = 0
        self._started_at_s = time.perf_counter()
        self._used_before = _seconds_of_children()
        try:
            self._tree: ProcessTree | None = ProcessTree(pid)
        except psutil.Error:  # it has ended already
            self._tree = None
        self._thread = threading.Thread(target=self._sample, name="xonar-sample", daemon=True)
        self._thread.start()

    def stop(self) -> Sampled:
        """Return what was seen; the process has ended and was waited for."""
        self._stopped.set()
        self._thread.join()
        # A few samples after the start say less than all of them.
        estimator = self._later if self._later.steps >= 10 else self._all
        estimate = estimator.estimate()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Kibibytes, of its largest process: all that is known of one that ended before a sample.
        largest_mib = usage.ru_maxrss // 1024
        return Sampled(
            active_fraction=estimate.active_fraction if estimate else self._overall(),
            active_fraction_interval=estimate.active_fraction_interval if estimate else None,
            peak_resident_mib=max(self._peak_mib, largest_mib) or None,
            peak_gpu_mib=self._peak_gpu_mib or None,
        )

    def _overall(self) -> float:
        elapsed = (time.perf_counter() - self._started_at_s) * processor_cores()
        return min(1.0, (_seconds_of_children() - self._used_before) / elapsed)

    def _sample(self) -> None:
        tree = self._tree
        if tree is None:
            return
        cores = processor_cores()
        started = last = time.perf_counter()
        used = used_seconds(tree.pids)
        while not self._stopped.wait(_SAMPLE_SECONDS):
            tree.refresh()
            now, used_now = time.perf_counter(), used_seconds(tree.pids)
            # What was left behind by its parent and has ended is in no account any more.
            sample = now - last, max(0.0, used_now - used) / cores
            self._all.add(*sample)
            if now - started > _START_UP_SECONDS:
                self._later.add(*sample)
            last, used = now, used_now
            self._peak_mib = max(self._peak_mib, tree.resident_mib())
            if self._gpu_memory_mib is not None:
                self._peak_gpu_mib = max(self._peak_gpu_mib, self._gpu_memory_mib(tree.pids) or 0)


def _seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
