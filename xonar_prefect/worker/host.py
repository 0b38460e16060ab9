"""The host around the devices as it is now: memory, processor threads, shared memory, disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from xonar_prefect.core.hosts import Host, HostResident
from xonar_prefect.devices.host_memory import HostMemory, anonymous_bytes, host_memory
from xonar_prefect.devices.host_processors import processor_threads
from xonar_prefect.worker.disk import HomeDisk
from xonar_prefect.worker.slots import Slot

_MIB = 1024 * 1024
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is written there
# TensorFlow's parameter servers wait for each other in inter-op threads and need four, even on
# one core; threads that wait cost nothing.
_INTER_OP_THREADS = 4


class HostWatch:
    """Reads the host for one worker.

    Args:
        disk: The file system of the worker's home.
        on_devices: How many trainings may be on its devices at once.
        without_device: How many may run beside them.
        headroom_mib: Main memory that is never given away.
        memory: What memory there is now.
        used_bytes: What a process holds; None when it is gone.
        threads: How many threads may run at once.
        shared_memory: Where shared memory is mounted.
    """

    def __init__(
        self,
        disk: HomeDisk,
        *,
        on_devices: int,
        without_device: int,
        headroom_mib: int,
        memory: Callable[[], HostMemory] = host_memory,
        used_bytes: Callable[[int], int | None] = anonymous_bytes,
        threads: Callable[[], int] = processor_threads,
        shared_memory: Path = _SHARED_MEMORY,
    ) -> None:
        self.disk = disk
        self._on_devices = max(1, on_devices)
        self._trainings = self._on_devices + without_device
        self._headroom_mib = headroom_mib
        self._memory = memory
        self._used_bytes = used_bytes
        self._threads = threads
        self._shared_memory = shared_memory

    def read(self, slots: Iterable[Slot]) -> Host:
        """Read the host, with the trainings in these slots on it."""
        memory = self._memory()
        total_mib = memory.total_bytes // _MIB
        shared_mib, used_shared_mib = self._read_shared_memory()
        return Host(
            memory_mib=total_mib,
            used_memory_mib=math.ceil((memory.total_bytes - memory.available_bytes) / _MIB),
            headroom_mib=self._headroom_mib,
            share_mib=max(0, total_mib - self._headroom_mib) // self._trainings,
            cpu_threads=self._threads(),
            shared_memory_mib=shared_mib,
            used_shared_memory_mib=used_shared_mib,
            disk=self.disk.read(),
            residents=tuple(
                HostResident(training=slot.training, used_memory_mib=self._used_mib(slot))
                for slot in slots
            ),
        )

    def thread_environment(self, wanted: int | None, devices: int) -> dict[str, str]:
        """Return the variables that keep a training's libraries to its share of the threads.

        Without them each library starts as many threads as the host has processors, and those of
        several trainings drive each other out.

        Args:
            wanted: Threads that were declared for it; None for an even share.
            devices: How many devices it has.
        """
        share = self._threads() * max(1, devices) // self._on_devices
        threads = max(1, share if wanted is None else wanted)
        return {
            "OMP_NUM_THREADS": str(threads),
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": str(max(_INTER_OP_THREADS, threads)),
        }

    def _used_mib(self, slot: Slot) -> int:
        used = (self._used_bytes(pid) for pid in list(slot.pids))
        return sum(each for each in used if each is not None) // _MIB

    def _read_shared_memory(self) -> tuple[int | None, int]:
        try:
            status = os.statvfs(self._shared_memory)
        except OSError:
            return None, 0
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return status.f_blocks * status.f_frsize // _MIB, math.ceil(used / _MIB)
