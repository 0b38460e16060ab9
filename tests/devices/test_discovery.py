from __future__ import annotations

import os
import subprocess
import sys

import pynvml
import pytest

from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import EVERY_DEVICE, FakeGpu, FakeNvml
from xonar_prefect.devices.discovery import discover
from xonar_prefect.errors import (
    CoreListError,
    DriverMismatchError,
    NoDeviceError,
    VisibleDevicesError,
)

GPU = FakeGpu(uuid="GPU-aaaa")


def test_gpus_are_taken_where_there_are_some(nvml: FakeNvml) -> None:
    nvml.show(GPU)
    for kind in ("auto", "nvidia"):
        accelerators = discover(kind, visible=None, cpu_cores=None)
        assert [reading.id for reading in accelerators.read({})] == ["GPU-aaaa"]
        accelerators.close()


def test_cores_are_taken_where_there_is_no_driver() -> None:
    with fake_nvml.missing():
        assert discover("auto", visible=None, cpu_cores=None).kind == "cpu"


def test_cores_are_taken_where_the_driver_has_no_gpu(nvml: FakeNvml) -> None:
    nvml.show()
    assert discover("auto", visible=None, cpu_cores=None).kind == "cpu"


def test_cores_are_taken_where_the_worker_was_given_no_gpu(nvml: FakeNvml) -> None:
    nvml.show(GPU)
    assert discover("auto", visible="", cpu_cores=None).kind == "cpu"


def test_cores_are_taken_on_demand_beside_gpus(nvml: FakeNvml) -> None:
    nvml.show(GPU)
    core = min(os.sched_getaffinity(0))
    accelerators = discover("cpu", visible=None, cpu_cores=str(core))
    assert [reading.id for reading in accelerators.read({})] == [f"cpu-{core}"]


def test_a_broken_driver_is_no_reason_to_train_on_cores(nvml: FakeNvml) -> None:
    nvml.show(
        GPU,
        failures={("nvmlInitWithFlags", EVERY_DEVICE): pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH},
    )
    accelerators = discover("auto", visible=None, cpu_cores=None)
    with pytest.raises(DriverMismatchError):
        accelerators.read({})


def test_a_wrong_list_of_visible_devices_is_no_reason_to_train_on_cores(nvml: FakeNvml) -> None:
    nvml.show(GPU)
    with pytest.raises(VisibleDevicesError):
        discover("auto", visible="3", cpu_cores=None)


def test_gpus_that_were_asked_for_and_are_not_there_are_an_error(nvml: FakeNvml) -> None:
    with pytest.raises(NoDeviceError, match=r"driver lists no GPU.*--devices cpu"):
        discover("nvidia", visible=None, cpu_cores=None)
    with pytest.raises(NoDeviceError, match="CUDA_VISIBLE_DEVICES is '-1'"):
        discover("nvidia", visible="-1", cpu_cores=None)
    with fake_nvml.missing(), pytest.raises(NoDeviceError, match="driver is missing"):
        discover("nvidia", visible=None, cpu_cores=None)


def test_a_wrong_list_of_cores_is_an_error() -> None:
    with pytest.raises(CoreListError):
        discover("cpu", visible=None, cpu_cores="none")


def test_finding_cores_loads_neither_the_driver_nor_a_framework() -> None:
    program = (
        "import sys\n"
        "from xonar_prefect.devices.discovery import discover\n"
        "discover('cpu', visible=None, cpu_cores=None).read({})\n"
        "print(sorted({'pynvml', 'tensorflow', 'torch', 'prefect', 'pydantic'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"
