"""The host around the devices, as a decision sees it: memory, processor threads, disk.

Memory and disk are in whole MiB. What cannot be read is None, and then no rule depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xonar_prefect.core.models import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system of the worker's home.

    Attributes:
        path: The home.
        free_mib: What this user may still write.
        least_free_mib: What releases leave to the trainings that run.
        free_inodes: Files that may still be made; None where that is not counted.
        least_free_inodes: How many of them releases leave.
        problem: Why nothing can be written at all, if so.
    """

    path: str
    free_mib: int
    least_free_mib: int = 0
    free_inodes: int | None = None
    least_free_inodes: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResident:
    """A training of this worker, with or without a device, and what it was seen to use."""

    training: Training
    used_memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a host has beside its devices; all that is left out is unknown.

    Attributes:
        memory_mib: Main memory of the host, or of the control group that limits it.
        used_memory_mib: In use by anybody and not to be had at once.
        headroom_mib: Main memory that is never given away.
        share_mib: Main memory that a training of unknown need is counted with, per device.
        cpu_threads: Threads that may run at once.
        shared_memory_mib: Size of `/dev/shm`.
        used_shared_memory_mib: In use there by anybody.
        disk: The file system of the worker's home.
        residents: The trainings of this worker that run or start.
    """

    memory_mib: int | None = None
    used_memory_mib: int = 0
    headroom_mib: int = 0
    share_mib: int = 0
    cpu_threads: int | None = None
    shared_memory_mib: int | None = None
    used_shared_memory_mib: int = 0
    disk: Disk | None = None
    residents: tuple[HostResident, ...] = ()

    @property
    def foreign_memory_mib(self) -> int:
        """Main memory in use by anybody but our trainings."""
        ours = sum(resident.used_memory_mib for resident in self.residents)
        return max(0, self.used_memory_mib - ours)

    @property
    def memory_capacity_mib(self) -> int | None:
        """Main memory that trainings could have if nobody else used any."""
        return None if self.memory_mib is None else max(0, self.memory_mib - self.headroom_mib)
