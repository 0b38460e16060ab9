"""NVML as a whole: starting it, starting it again, what the worker was given, and confinement."""

from __future__ import annotations

import threading

import pynvml
import pytest

from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import EVERY_DEVICE, HANG, FakeGpu, FakeNvml, FakeSlice
from tests.waiting import until
from xonar_prefect.devices.nvml import NvmlAccelerators
from xonar_prefect.errors import (
    DeviceError,
    DriverMismatchError,
    NoDeviceError,
    UnknownDeviceError,
    VisibleDevicesError,
)

FIRST, SECOND, THIRD = (FakeGpu(uuid=f"GPU-{name}") for name in ("aaaa", "bbbb", "cccc"))
START = "nvmlInitWithFlags"
COUNT = "nvmlDeviceGetCount_v2"
HANDLE = "nvmlDeviceGetHandleByIndex_v2"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ids(accelerators: NvmlAccelerators) -> list[str]:
    return [reading.id for reading in accelerators.read({})]


# --- starting NVML ---


def test_without_a_driver_there_is_no_device() -> None:
    with fake_nvml.missing(), pytest.raises(NoDeviceError, match="driver is missing or not loaded"):
        NvmlAccelerators().read({})


def test_a_driver_that_is_not_loaded_is_no_device(nvml: FakeNvml) -> None:
    nvml.show(failures={(START, EVERY_DEVICE): pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    with pytest.raises(NoDeviceError, match="Driver Not Loaded"):
        NvmlAccelerators().read({})


def test_a_mismatched_driver_says_what_to_do_and_is_tried_again(nvml: FakeNvml) -> None:
    # lyulyul/shine-cluster#30: unattended upgrades; running trainings are fine, new ones not.
    clock = Clock()
    accelerators = NvmlAccelerators(clock=clock)
    nvml.show(FIRST, failures={(START, EVERY_DEVICE): pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH})
    for _ in range(3):
        with pytest.raises(DriverMismatchError, match=r"running trainings go on.*reboot"):
            accelerators.read({})
    nvml.show(FIRST)
    clock.now_s += 60
    assert ids(accelerators) == ["GPU-aaaa"]


def test_nvml_that_cannot_be_started_says_so(nvml: FakeNvml) -> None:
    nvml.show(failures={(START, EVERY_DEVICE): pynvml.NVML_ERROR_UNKNOWN})
    with pytest.raises(DeviceError, match=r"NVML cannot be started \(Unknown Error\)"):
        NvmlAccelerators().read({})


def test_a_driver_without_gpus_has_no_readings(nvml: FakeNvml) -> None:
    nvml.show()
    assert NvmlAccelerators().read({}) == ()


# --- starting it again ---


def test_a_container_that_loses_its_gpus_gets_them_back(nvml: FakeNvml) -> None:
    # NVIDIA/nvidia-container-toolkit#48, NVIDIA/nvidia-docker#1730: after `systemctl
    # daemon-reload` every call says Unknown Error.
    clock = Clock()
    accelerators = NvmlAccelerators(clock=clock)
    nvml.show(FIRST)
    accelerators.read({})
    nvml.show(FIRST, failures={(COUNT, EVERY_DEVICE): pynvml.NVML_ERROR_UNKNOWN})
    for _ in range(3):
        with pytest.raises(DeviceError, match=r"does not list the GPUs \(Unknown Error\)"):
            accelerators.read({})
    nvml.show(FIRST)
    clock.now_s += 60
    assert ids(accelerators) == ["GPU-aaaa"]


def test_nvml_shut_down_by_others_is_started_at_the_next_read(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST)
    accelerators.read({})
    nvml.shut_down_behind_the_back()
    with pytest.raises(DeviceError, match="Uninitialized"):
        accelerators.read({})
    assert ids(accelerators) == ["GPU-aaaa"]


def starts(nvml: FakeNvml, accelerators: NvmlAccelerators) -> bool:
    """Tell whether a read starts NVML anew, which it cannot do here."""
    failures = {
        (HANDLE, "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST,
        (START, EVERY_DEVICE): pynvml.NVML_ERROR_UNKNOWN,
    }
    nvml.show(FIRST, SECOND, failures=failures)
    try:
        accelerators.read({})
    except DeviceError:
        return True
    return False


def test_for_a_lost_gpu_nvml_is_started_at_the_next_read_and_then_ever_more_rarely(
    nvml: FakeNvml,
) -> None:
    clock = Clock()
    accelerators = NvmlAccelerators(clock=clock)
    lost = {(HANDLE, "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST}
    nvml.show(FIRST, SECOND, failures=lost)
    accelerators.read({})
    for pause_s in (0, 1, 2, 4, 8, 16, 32, 60, 60):
        clock.now_s += pause_s
        nvml.show(FIRST, SECOND, failures=lost)
        if pause_s:
            clock.now_s -= 0.5
            assert not starts(nvml, accelerators)
            clock.now_s += 0.5
        assert starts(nvml, accelerators)
        nvml.show(FIRST, SECOND, failures=lost)
        accelerators.read({})


def test_a_gpu_that_came_back_makes_the_next_restart_prompt_again(nvml: FakeNvml) -> None:
    clock = Clock()
    accelerators = NvmlAccelerators(clock=clock)
    lost = {(HANDLE, "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST}
    for _ in range(2):
        nvml.show(FIRST, SECOND, failures=lost)
        accelerators.read({})
        assert starts(nvml, accelerators)
        nvml.show(FIRST, SECOND)
        accelerators.read({})


def test_a_figure_that_is_not_supported_is_no_reason_to_start_again(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    code = pynvml.NVML_ERROR_NOT_SUPPORTED
    nvml.show(FIRST, SECOND, failures={("nvmlDeviceGetName", "GPU-bbbb"): code})
    accelerators.read({})
    assert not starts(nvml, accelerators)


def test_nvml_that_fails_is_started_again_ever_more_rarely(nvml: FakeNvml) -> None:
    clock = Clock()
    accelerators = NvmlAccelerators(clock=clock)
    nvml.show(FIRST, failures={(START, EVERY_DEVICE): pynvml.NVML_ERROR_UNKNOWN})
    for pause_s in (0, 0, 1, 2, 4):
        clock.now_s += pause_s
        with pytest.raises(DeviceError, match="cannot be started"):
            accelerators.read({})
    nvml.show(FIRST)
    clock.now_s += 7.9
    with pytest.raises(DeviceError, match="cannot be started"):
        accelerators.read({})
    clock.now_s += 0.1
    assert ids(accelerators) == ["GPU-aaaa"]


# --- calls that hang ---


def threads_in_nvml() -> int:
    return sum(thread.name.startswith("xonar ") for thread in threading.enumerate())


def impatient(nvml: FakeNvml, clock: Clock | None = None) -> NvmlAccelerators:
    accelerators = NvmlAccelerators(answer_seconds=1.0, clock=clock or Clock())
    nvml.show(FIRST, SECOND)
    accelerators.read({})
    return accelerators


@pytest.mark.parametrize("function", [HANDLE, "nvmlDeviceGetMemoryInfo_v2"])
def test_a_gpu_that_hangs_is_unreadable_and_costs_one_thread(nvml: FakeNvml, function: str) -> None:
    accelerators = impatient(nvml)
    nvml.show(FIRST, SECOND, failures={(function, "GPU-aaaa"): HANG})
    for _ in range(5):
        first, second = accelerators.read({})
        assert "NVML cannot read it: it has not answered" in (first.unavailable or "")
        assert (first.id, first.memory_mib) == ("GPU-aaaa", 32768)
        assert (second.id, second.unavailable) == ("GPU-bbbb", None)
    until(lambda: threads_in_nvml() == 1)  # those that have answered may be about to end
    nvml.show(FIRST, SECOND)
    until(lambda: threads_in_nvml() == 0)
    assert [reading.unavailable for reading in accelerators.read({})] == [None, None]


def test_nvml_that_hangs_as_a_whole_costs_one_thread_and_recovers(nvml: FakeNvml) -> None:
    clock = Clock()
    accelerators = impatient(nvml, clock)
    nvml.show(FIRST, SECOND, failures={(COUNT, EVERY_DEVICE): HANG})
    for _ in range(5):
        clock.now_s += 60
        with pytest.raises(
            DeviceError, match=r"does not list the GPUs: it has not answered.*hangs"
        ):
            accelerators.read({})
    until(lambda: threads_in_nvml() == 1)
    accelerators.close()  # would wait for the call that hangs
    nvml.show(FIRST, SECOND)
    until(lambda: threads_in_nvml() == 0)
    clock.now_s += 60
    assert ids(accelerators) == ["GPU-aaaa", "GPU-bbbb"]


def test_nvml_that_hangs_when_it_is_started_again_is_waited_for_in_one_thread(
    nvml: FakeNvml,
) -> None:
    clock = Clock()
    accelerators = impatient(nvml, clock)
    accelerators.close()
    nvml.show(FIRST, SECOND, failures={(START, EVERY_DEVICE): HANG})
    for _ in range(3):
        clock.now_s += 60
        with pytest.raises(DeviceError, match=r"cannot be started: it has not answered.*hangs"):
            accelerators.read({})
    until(lambda: threads_in_nvml() == 1)
    nvml.show(FIRST, SECOND)
    until(lambda: threads_in_nvml() == 0)
    clock.now_s += 60
    assert ids(accelerators) == ["GPU-aaaa", "GPU-bbbb"]
    accelerators.close()
    assert ids(accelerators) == ["GPU-aaaa", "GPU-bbbb"]


# --- what the worker was given ---


def test_only_the_visible_devices_are_read(nvml: FakeNvml) -> None:
    nvml.show(FIRST, SECOND, THIRD)
    accelerators = NvmlAccelerators(visible="2,GPU-aa")
    assert [(r.index, r.id) for r in accelerators.read({})] == [(0, "GPU-aaaa"), (2, "GPU-cccc")]


def test_no_visible_device_means_no_reading_and_no_nvml() -> None:
    with fake_nvml.missing():
        assert NvmlAccelerators(visible="").read({}) == ()


def test_an_entry_that_matches_nothing_is_refused(nvml: FakeNvml) -> None:
    nvml.show(FIRST)
    with pytest.raises(VisibleDevicesError, match=r"'5' matches no device.*0 = GPU-aaaa"):
        NvmlAccelerators(visible="0,5").read({})


def test_an_index_keeps_its_device_when_the_list_moves_up(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators(visible="1")
    nvml.show(FIRST, SECOND, THIRD)
    assert ids(accelerators) == ["GPU-bbbb"]
    nvml.show(SECOND, THIRD)
    assert ids(accelerators) == ["GPU-bbbb"]


def test_an_index_of_a_gpu_without_a_name_is_that_gpu_once_it_has_one(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators(visible="1")
    lost = {(HANDLE, "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST}
    nvml.show(FIRST, SECOND, failures=lost)
    assert ids(accelerators) == ["gpu-1"]
    nvml.show(FIRST, SECOND)
    assert ids(accelerators) == ["GPU-bbbb"]


def test_slices_are_visible_by_their_old_names_too(nvml: FakeNvml) -> None:
    slices = (FakeSlice(uuid="MIG-1"), FakeSlice(uuid="MIG-2", gpu_instance=5))
    nvml.show(FakeGpu(uuid="GPU-ffff", slices=slices))
    assert ids(NvmlAccelerators(visible="MIG-GPU-ffff/5/0")) == ["MIG-2"]


# --- confinement ---


def test_a_process_is_confined_by_uuid_and_its_frameworks_do_not_take_all_memory(
    nvml: FakeNvml,
) -> None:
    # tensorflow/tensorflow#4706, #36501; google/jax#19267: before the interpreter starts.
    nvml.show(FIRST, SECOND)
    assert NvmlAccelerators().environment(["GPU-bbbb", "GPU-aaaa"], None) == {
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb,GPU-aaaa",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


@pytest.mark.parametrize(
    ("limit_mib", "fraction"),
    [(16384, "0.500"), (10923, "0.333"), (1, "0.001"), (32768, "1.000"), (99999, "1.000")],
)
def test_a_limit_is_a_share_of_the_devices_memory_rounded_down(
    nvml: FakeNvml, limit_mib: int, fraction: str
) -> None:
    nvml.show(FIRST)
    variables = NvmlAccelerators().environment(["GPU-aaaa"], limit_mib)
    assert variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == fraction


def test_a_limit_on_unequal_devices_is_a_share_of_the_smallest(nvml: FakeNvml) -> None:
    nvml.show(FIRST, FakeGpu(uuid="GPU-tiny", total_mib=16000))
    variables = NvmlAccelerators().environment(["GPU-aaaa", "GPU-tiny"], 8000)
    assert variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.500"


def test_a_device_that_the_worker_may_not_use_is_refused(nvml: FakeNvml) -> None:
    nvml.show(FIRST, SECOND)
    accelerators = NvmlAccelerators(visible="0")
    with pytest.raises(UnknownDeviceError, match=r"no device 'GPU-bbbb' here.*are: GPU-aaaa"):
        accelerators.environment(["GPU-bbbb"], None)


def test_a_device_that_came_later_is_found(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST)
    accelerators.read({})
    nvml.show(FIRST, SECOND)
    assert accelerators.processors(["GPU-bbbb"]) is None
