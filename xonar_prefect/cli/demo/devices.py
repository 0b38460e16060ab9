"""The devices of the demonstration, and the cores that are left for server and worker."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from xonar_prefect.cli.demo.trainings import USUAL_TRAININGS
from xonar_prefect.devices import discover
from xonar_prefect.devices.cores import default_cores, parse_cores

DeviceKind = Literal["auto", "nvidia", "cpu"]

_CORES_VARIABLE = "XONAR_CPU_DEVICES"
# Ten trainings on more cores than this would have no reason to share one.
_CORES = 2
_TRAININGS_PER_DEVICE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDevices:
    """What the trainings run on.

    Attributes:
        kind: `"nvidia"` or `"cpu"`.
        model: Their model.
        count: How many there are.
        environment: What tells the worker to use exactly these.
        spare_cores: Processor cores that no training is pinned to; none where there are none.
    """

    kind: str
    model: str
    count: int
    environment: dict[str, str] = field(default_factory=dict)
    spare_cores: tuple[int, ...] = ()

    @property
    def trainings(self) -> int:
        """Trainings that keep them busy for a while: at least ten."""
        return max(USUAL_TRAININGS, _TRAININGS_PER_DEVICE * self.count)

    def __str__(self) -> str:
        if self.kind == "cpu":
            cores = "core" if self.count == 1 else "cores"
            return f"{self.count} processor {cores} as stand-in devices ({self.model})"
        return f"{self.count} x {self.model}"


def find_devices(kind: DeviceKind) -> DemoDevices:
    """Find GPUs, or choose processor cores: two of them, unless the user names others.

    Raises:
        NoDeviceError: There is no device of this kind.
        CoreListError: The user's list of cores is wrong.
        DeviceError: The driver is broken.
    """
    available = os.sched_getaffinity(0)
    named = os.environ.get(_CORES_VARIABLE)
    cores = parse_cores(named, available) if named else default_cores(available)[:_CORES]
    listed = ",".join(str(core) for core in cores)
    accelerators = discover(kind, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), cpu_cores=listed)
    with closing(accelerators):
        readings = accelerators.read({})
        on_cores = accelerators.kind == "cpu"
        return DemoDevices(
            kind=accelerators.kind,
            model=readings[0].model,
            count=len(readings),
            environment={
                "XONAR_DEVICES": accelerators.kind,
                **({_CORES_VARIABLE: listed} if on_cores else {}),
            },
            spare_cores=tuple(sorted(available - set(cores))) if on_cores else (),
        )
