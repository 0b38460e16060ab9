"""Find this host's devices."""

from __future__ import annotations

import os
from typing import Literal

from xonar_prefect.devices.base import Accelerators
from xonar_prefect.devices.cores import default_cores, parse_cores
from xonar_prefect.devices.cpu import CpuAccelerators
from xonar_prefect.devices.nvml import NvmlAccelerators
from xonar_prefect.devices.visible import names_no_device
from xonar_prefect.errors import DeviceError, NoDeviceError, VisibleDevicesError


def discover(
    kind: Literal["auto", "nvidia", "cpu"],
    *,
    visible: str | None,
    cpu_cores: str | None,
) -> Accelerators:
    """Return the devices that the worker may use; there is at least one.

    `"auto"` takes GPUs, and cores only where there is no driver or no GPU for this worker. A
    driver that is there but does not work is no reason to train on cores instead: it may recover,
    and until then reading the devices raises what is wrong with it.

    Args:
        kind: Which devices.
        visible: The worker's own `CUDA_VISIBLE_DEVICES`; None when it is not set.
        cpu_cores: Cores that stand in as devices, as in `taskset`; None for the default.

    Raises:
        NoDeviceError: GPUs were asked for and there is none.
        CoreListError: The list of cores is wrong.
        VisibleDevicesError: `visible` names what is not there.
    """
    if kind == "cpu":
        return _cores(cpu_cores)
    try:
        return _gpus(visible)
    except NoDeviceError:
        if kind == "nvidia":
            raise
        return _cores(cpu_cores)


def _gpus(visible: str | None) -> NvmlAccelerators:
    if names_no_device(visible):
        raise NoDeviceError(f"CUDA_VISIBLE_DEVICES is {visible!r}, which takes all GPUs away")
    gpus = NvmlAccelerators(visible=visible)
    try:
        found = gpus.read({})
    except (NoDeviceError, VisibleDevicesError):
        raise
    except DeviceError:
        return gpus  # whoever reads them is told the same, as long as it lasts
    if not found:
        gpus.close()
        raise NoDeviceError("the NVIDIA driver lists no GPU")
    return gpus


def _cores(text: str | None) -> CpuAccelerators:
    available = os.sched_getaffinity(0)
    return CpuAccelerators(
        default_cores(available) if text is None else parse_cores(text, available)
    )
