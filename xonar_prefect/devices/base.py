"""What the worker needs of accelerators, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device as it is at this moment, memory in whole MiB.

    Attributes:
        id: UUID of a GPU or MIG slice; `cpu-N` for a processor core.
        index: Position for display.
        model: Device model.
        memory_mib: Total memory; 0 only for an unavailable device that never could be read.
        reserved_mib: Kept by the driver, never usable.
        used_mib: In use by anybody, without `reserved_mib`; at least the sum of `used_by_pid`.
            Where it cannot be read the device is unavailable and shows what was last read:
            unknown is never zero.
        used_by_pid: What is attributed to single processes, of anybody; one that is absent here has
            unknown usage.
        unavailable: Why nothing may be released to it, if so.
        driver_keeps_memory: Memory is the driver's to take back: some may stay in use when the
            process that had it is gone, and some may not be attributed to any process.
        named: Its id is its own. False for a GPU that did not give its UUID: `gpu-N` stands for
            its position, and it will have another id.
    """

    id: str
    index: int
    model: str
    memory_mib: int
    reserved_mib: int = 0
    used_mib: int = 0
    used_by_pid: Mapping[int, int] = field(default_factory=dict)
    unavailable: str | None = None
    driver_keeps_memory: bool = False
    named: bool = True

    @property
    def unattributed_mib(self) -> int:
        """What is in use and not attributed to any process: somebody has it, and it counts."""
        return max(0, self.used_mib - sum(self.used_by_pid.values()))


class Accelerators(Protocol):
    """A source of devices of one kind."""

    @property
    def kind(self) -> str:
        """`"nvidia"` or `"cpu"`."""
        ...

    def read(self, processes: Mapping[str, Sequence[int]]) -> tuple[DeviceReading, ...]:
        """Read every device, ordered by index; one that is broken does not hide the others.

        One reader at a time: this is not made for several threads.

        Args:
            processes: Process ids of our trainings (of their whole trees), by the id of the
                device they were put on.

        Raises:
            DeviceError: The source as a whole cannot be read (driver gone or mismatched).
        """
        ...

    def environment(
        self, device_ids: Sequence[str], memory_limit_mib: int | None
    ) -> dict[str, str]:
        """Return the environment variables that confine a process to these devices.

        They must be set before the interpreter starts. `memory_limit_mib` is the cap of its
        allocator on each device, None for no cap. No devices gives the environment of a run
        that uses none.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        ...

    def processors(self, device_ids: Sequence[str]) -> tuple[int, ...] | None:
        """Return the processor cores a training on these devices is pinned to; None for any.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        ...

    def close(self) -> None:
        """Let go of the driver; harmless when repeated, and a later `read` takes it up again."""
        ...
