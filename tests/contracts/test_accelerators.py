from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.accelerators import PROMISES
from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import FakeGpu, FakeProcess, FakeSlice
from xonar_prefect.devices.base import Accelerators
from xonar_prefect.devices.cpu import CpuAccelerators
from xonar_prefect.devices.nvml import NvmlAccelerators

GPUS = (
    FakeGpu(
        uuid="GPU-11111111-0000-0000-0000-000000000000",
        processes=(FakeProcess(pid=os.getpid(), memory_mib=3000),),
    ),
    FakeGpu(uuid="GPU-22222222-0000-0000-0000-000000000000", ecc_errors=4),
    FakeGpu(
        uuid="GPU-33333333-0000-0000-0000-000000000000",
        name="NVIDIA A100-SXM4-40GB",
        slices=(
            FakeSlice(uuid="MIG-44444444-0000-0000-0000-000000000000"),
            FakeSlice(uuid="MIG-55555555-0000-0000-0000-000000000000", gpu_instance=2),
        ),
    ),
)


@pytest.fixture(params=["nvml", "cpu"])
def accelerators(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Accelerators]:
    if request.param == "cpu":
        yield CpuAccelerators(sorted(os.sched_getaffinity(0)))
        return
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    with fake_nvml.loaded(tmp_path) as nvml:
        nvml.show(*GPUS)
        gpus = NvmlAccelerators()
        yield gpus
        gpus.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_source_of_devices_keeps(
    promise: Callable[[Accelerators], None], accelerators: Accelerators
) -> None:
    promise(accelerators)
