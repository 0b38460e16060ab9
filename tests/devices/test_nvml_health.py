"""What a GPU says against itself (microsoft/pai#4314, MFlowCode/MFC PR#1748: idle and broken)."""

from __future__ import annotations

import pynvml
import pytest

from tests.fakes.nvml import EVERY_DEVICE, FakeGpu, FakeNvml
from xonar_prefect.devices.nvml import NvmlAccelerators


def problem_of(nvml: FakeNvml, gpu: FakeGpu) -> str | None:
    nvml.show(gpu, FakeGpu(uuid="GPU-healthy"))
    first, healthy = NvmlAccelerators().read({})
    assert healthy.unavailable is None
    return first.unavailable


@pytest.mark.parametrize(("mode", "name"), [(1, "exclusive"), (2, "prohibited"), (3, "exclusive")])
def test_a_mode_that_forbids_sharing_makes_a_gpu_unavailable(
    nvml: FakeNvml, mode: int, name: str
) -> None:
    problem = problem_of(nvml, FakeGpu(uuid="GPU-a", compute_mode=mode))
    assert problem == (
        f"its compute mode is {name}; set it back with `nvidia-smi --compute-mode=DEFAULT`"
    )


def test_uncorrected_memory_errors_make_a_gpu_unavailable(nvml: FakeNvml) -> None:
    # NVIDIA/k8s-device-plugin#243, #267: uncorrectable errors, but "healthy".
    problem = problem_of(nvml, FakeGpu(uuid="GPU-a", ecc_errors=2))
    assert problem == "uncorrected memory errors since the driver was loaded: 2; reset the GPU"


def test_rows_that_wait_for_a_reset_make_a_gpu_unavailable(nvml: FakeNvml) -> None:
    problem = problem_of(nvml, FakeGpu(uuid="GPU-a", rows_pending=True))
    assert problem == "broken rows of its memory wait to be replaced; reset the GPU"


def test_a_gpu_without_such_figures_is_healthy(nvml: FakeNvml) -> None:
    assert problem_of(nvml, FakeGpu(uuid="GPU-a", ecc_errors=None, rows_pending=None)) is None


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND]
)
def test_figures_that_are_not_for_us_are_no_fault(nvml: FakeNvml, code: int) -> None:
    functions = ("ComputeMode", "TotalEccErrors", "RemappedRows", "RetiredPagesPendingStatus")
    nvml.show(
        FakeGpu(uuid="GPU-a", compute_mode=3),
        failures={(f"nvmlDeviceGet{name}", EVERY_DEVICE): code for name in functions},
    )
    (reading,) = NvmlAccelerators().read({})
    assert reading.unavailable is None


def test_a_gpu_with_a_problem_still_shows_its_memory(nvml: FakeNvml) -> None:
    nvml.show(FakeGpu(uuid="GPU-a", ecc_errors=2, used_mib=900))
    (reading,) = NvmlAccelerators().read({})
    assert (reading.memory_mib, reading.used_mib) == (32768, 900)


def test_pages_that_wait_for_a_reset_make_a_gpu_unavailable(nvml: FakeNvml) -> None:
    problem = problem_of(nvml, FakeGpu(uuid="GPU-a", pages_pending=True))
    assert problem == "broken pages of its memory wait to be retired; reset the GPU"
    assert problem_of(nvml, FakeGpu(uuid="GPU-a", pages_pending=False)) is None
