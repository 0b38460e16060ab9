"""What is read of GPUs and MIG slices, with the real pynvml on the fake library."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from tests.devices.test_process_ids import add_process
from tests.fakes.nvml import EVERY_DEVICE, FakeGpu, FakeNvml, FakeProcess, FakeSlice
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.devices.nvml import NvmlAccelerators

FIRST, SECOND, THIRD = (FakeGpu(uuid=f"GPU-{name}") for name in ("aaaa", "bbbb", "cccc"))
LEFT = FakeSlice(uuid="MIG-dddd", gpu_instance=1)
RIGHT = FakeSlice(uuid="MIG-eeee", gpu_instance=2, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
DIVIDED = FakeGpu(uuid="GPU-ffff", name="NVIDIA A100-SXM4-40GB", slices=(LEFT, RIGHT))


NO_PROC = Path("/nonexistent")  # process ids are then what NVML says, wherever this runs


def read(accelerators: NvmlAccelerators | None = None) -> tuple[DeviceReading, ...]:
    return (accelerators or NvmlAccelerators(proc=NO_PROC)).read({})


def by_id(readings: tuple[DeviceReading, ...]) -> dict[str, DeviceReading]:
    return {reading.id: reading for reading in readings}


# --- memory ---


def test_the_drivers_reserve_stands_apart_from_what_is_used(nvml: FakeNvml) -> None:
    # kai-scheduler/KAI-Scheduler#2212: 450 MiB of a T4 are never usable.
    nvml.show(FakeGpu(uuid="GPU-t4", total_mib=15360, used_mib=2000, reserved_mib=450))
    (reading,) = read()
    assert (reading.memory_mib, reading.reserved_mib, reading.used_mib) == (15360, 450, 2000)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    ],
)
def test_where_the_reserve_is_unknown_it_counts_as_used(nvml: FakeNvml, code: int) -> None:
    nvml.show(
        FakeGpu(uuid="GPU-t4", used_mib=2000, reserved_mib=450),
        failures={("nvmlDeviceGetMemoryInfo_v2", EVERY_DEVICE): code},
    )
    (reading,) = read()
    assert (reading.reserved_mib, reading.used_mib) == (0, 2450)
    assert reading.unavailable is None


def test_memory_that_cannot_be_read_makes_the_device_unavailable_and_not_empty(
    nvml: FakeNvml,
) -> None:
    # XuehaiPan/nvitop#55, Syllo/nvtop#432: NotSupported must not become a number.
    code = pynvml.NVML_ERROR_NOT_SUPPORTED
    nvml.show(
        FIRST,
        SECOND,
        failures={
            ("nvmlDeviceGetMemoryInfo_v2", "GPU-bbbb"): code,
            ("nvmlDeviceGetMemoryInfo", "GPU-bbbb"): code,
        },
    )
    first, second = read()
    assert first.unavailable is None
    # Also what a board says whose GPU uses the host's memory: unknown is never zero.
    assert second.id == "GPU-bbbb"
    assert (second.unavailable or "").startswith("NVML cannot read it: Not Supported; a device ")


def test_a_device_without_any_memory_is_unavailable(nvml: FakeNvml) -> None:
    nvml.show(FakeGpu(uuid="GPU-void", total_mib=0, reserved_mib=0))
    (reading,) = read()
    assert reading.unavailable == "NVML reports no memory for it"


def test_a_device_that_can_no_longer_be_read_shows_what_was_last_read(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FakeGpu(uuid="GPU-aaaa", name="Tesla T4", used_mib=700))
    read(accelerators)
    nvml.show(FIRST, failures={("nvmlDeviceGetName", EVERY_DEVICE): pynvml.NVML_ERROR_GPU_IS_LOST})
    (reading,) = read(accelerators)
    assert (reading.model, reading.memory_mib, reading.used_mib) == ("Tesla T4", 32768, 700)
    assert reading.unavailable == "NVML cannot read it: GPU is lost"


# --- processes ---


def test_processes_of_all_three_kinds_are_attributed(nvml: FakeNvml) -> None:
    processes = (
        FakeProcess(pid=11, memory_mib=1000),
        FakeProcess(pid=12, memory_mib=2000, kind="mps"),
        FakeProcess(pid=13, memory_mib=30, kind="graphics"),
    )
    nvml.show(FakeGpu(uuid="GPU-aaaa", processes=processes))
    (reading,) = read()
    assert reading.used_by_pid == {11: 1000, 12: 2000, 13: 30}
    assert reading.used_mib == 3030


def test_a_process_that_computes_and_draws_counts_once(nvml: FakeNvml) -> None:
    processes = tuple(
        FakeProcess(pid=11, memory_mib=1000, kind=kind) for kind in ("compute", "graphics")
    )
    nvml.show(FakeGpu(uuid="GPU-aaaa", used_mib=1000, processes=processes))
    (reading,) = read()
    assert reading.used_by_pid == {11: 1000}
    assert reading.used_mib == 1000


def test_a_process_whose_memory_is_not_available_is_absent(nvml: FakeNvml) -> None:
    # XuehaiPan/nvitop#55, microsoft/WSL#7162: 2^64 - 1 stands for "not available".
    processes = (FakeProcess(pid=11, memory_mib=None), FakeProcess(pid=12, memory_mib=500))
    nvml.show(FakeGpu(uuid="GPU-aaaa", used_mib=9000, processes=processes))
    (reading,) = read()
    assert reading.used_by_pid == {12: 500}
    assert reading.used_mib == 9000


def test_a_process_with_more_than_all_memory_is_absent(nvml: FakeNvml) -> None:
    # wookayin/gpustat#157: a struct that changed with driver 535 gave nonsense.
    processes = (FakeProcess(pid=11, memory_mib=10**9),)
    nvml.show(FakeGpu(uuid="GPU-aaaa", used_mib=9000, processes=processes))
    (reading,) = read()
    assert reading.used_by_pid == {}
    assert reading.used_mib == 9000


def test_memory_of_processes_that_nobody_lists_stays_in_use(nvml: FakeNvml) -> None:
    # gpustack/gpustack#6044, Project-HAMi/HAMi#1069, NVIDIA/k8s-device-plugin#237: 80 GiB held by
    # a program started by hand or in a container, and the card was shown as idle.
    nvml.show(FakeGpu(uuid="GPU-aaaa", total_mib=81920, used_mib=80000))
    (reading,) = read()
    assert reading.used_by_pid == {}
    assert reading.used_mib == 80000


def test_processes_that_hold_more_than_the_device_says_are_believed(nvml: FakeNvml) -> None:
    nvml.show(FakeGpu(uuid="GPU-a", used_mib=100, processes=(FakeProcess(pid=11, memory_mib=800),)))
    (reading,) = read()
    assert reading.used_mib == 800


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
    ],
)
def test_a_list_of_processes_that_is_refused_leaves_the_others(nvml: FakeNvml, code: int) -> None:
    processes = (
        FakeProcess(pid=11, memory_mib=1000),
        FakeProcess(pid=12, memory_mib=2000, kind="mps"),
    )
    nvml.show(
        FakeGpu(uuid="GPU-aaaa", processes=processes),
        failures={("nvmlDeviceGetMPSComputeRunningProcesses_v3", EVERY_DEVICE): code},
    )
    (reading,) = read()
    assert reading.used_by_pid == {11: 1000}
    assert reading.unavailable is None


def test_host_process_ids_are_given_as_ids_of_this_namespace(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    # NVIDIA/gpu-monitoring-tools#63: in a container NVML speaks of the host's processes.
    ours, others = "pid:[4026532001]", "pid:[4026532002]"
    add_process(tmp_path / "proc", "self", (7001, 12), ours)
    add_process(tmp_path / "proc", "7002", (7002, 13), ours)
    add_process(tmp_path / "proc", "7003", (7003, 13), others)
    processes = tuple(FakeProcess(pid=pid, memory_mib=pid) for pid in (7002, 7003))
    nvml.show(FakeGpu(uuid="GPU-aaaa", processes=processes))
    (reading,) = read(NvmlAccelerators(proc=tmp_path / "proc"))
    assert reading.used_by_pid == {13: 7002}
    assert reading.used_mib == 7002 + 7003


def test_what_no_process_is_said_to_have_is_unattributed(nvml: FakeNvml) -> None:
    # wookayin/gpustat#157: 6100 MiB were missing from the list of processes.
    processes = (FakeProcess(pid=11, memory_mib=1000), FakeProcess(pid=12, memory_mib=None))
    nvml.show(FakeGpu(uuid="GPU-aaaa", used_mib=7100, processes=processes))
    (reading,) = read()
    assert reading.unattributed_mib == 6100
    assert reading.driver_keeps_memory


# --- MIG ---


def test_a_divided_gpu_is_replaced_by_its_slices(nvml: FakeNvml) -> None:
    # dask/distributed#8739, Syllo/nvtop#256: a slice is a device with memory of its own.
    nvml.show(FIRST, DIVIDED, SECOND)
    readings = read()
    assert [(r.index, r.id) for r in readings] == [
        (0, "GPU-aaaa"),
        (1, "MIG-dddd"),
        (2, "MIG-eeee"),
        (3, "GPU-bbbb"),
    ]
    assert readings[2].model == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert readings[2].memory_mib == RIGHT.total_mib


def test_a_slice_shows_its_own_processes(nvml: FakeNvml) -> None:
    left = FakeSlice(uuid="MIG-dddd", processes=(FakeProcess(pid=11, memory_mib=600),))
    nvml.show(FakeGpu(uuid="GPU-ffff", slices=(left, RIGHT)))
    first, second = read()
    assert (first.used_mib, first.used_by_pid) == (600, {11: 600})
    assert (second.used_mib, second.used_by_pid) == (0, {})


def test_a_slice_with_its_gpus_name_is_told_apart_by_its_memory(nvml: FakeNvml) -> None:
    plain = FakeSlice(uuid="MIG-dddd", name="NVIDIA A100-SXM4-40GB", total_mib=4864)
    nvml.show(FakeGpu(uuid="GPU-ffff", name="NVIDIA A100-SXM4-40GB", slices=(plain,)))
    (reading,) = read()
    assert reading.model == "NVIDIA A100-SXM4-40GB MIG 4864 MiB"


def test_a_gpu_that_can_be_divided_but_is_not_is_one_device(nvml: FakeNvml) -> None:
    nvml.show(FakeGpu(uuid="GPU-ffff", mig_capable=True))
    assert [reading.id for reading in read()] == ["GPU-ffff"]


def test_a_divided_gpu_without_slices_says_so(nvml: FakeNvml) -> None:
    nvml.show(FakeGpu(uuid="GPU-ffff", slices=()))
    (reading,) = read()
    assert reading.id == "GPU-ffff"
    assert "MIG mode is on but it has no slice" in (reading.unavailable or "")


def test_slices_are_read_without_permission_on_their_gpu(nvml: FakeNvml) -> None:
    # wookayin/gpustat#102: the parent's figures are forbidden.
    code = pynvml.NVML_ERROR_NO_PERMISSION
    functions = ("ComputeMode", "TotalEccErrors", "RemappedRows", "MemoryInfo", "MemoryInfo_v2")
    nvml.show(DIVIDED, failures={(f"nvmlDeviceGet{name}", "GPU-ffff"): code for name in functions})
    assert [(r.id, r.unavailable) for r in read()] == [("MIG-dddd", None), ("MIG-eeee", None)]


def test_a_broken_slice_does_not_hide_the_other(nvml: FakeNvml) -> None:
    nvml.show(DIVIDED, failures={("nvmlDeviceGetName", "MIG-dddd"): pynvml.NVML_ERROR_GPU_IS_LOST})
    left, right = read()
    assert left.unavailable == "NVML cannot read it: GPU is lost"
    assert right.unavailable is None


def test_a_slice_without_a_name_is_remembered(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(DIVIDED)
    read(accelerators)
    nvml.show(DIVIDED, failures={("nvmlDeviceGetUUID", "MIG-dddd"): pynvml.NVML_ERROR_UNKNOWN})
    readings = by_id(read(accelerators))
    assert "no longer lists it" in (readings["MIG-dddd"].unavailable or "")
    assert readings["MIG-eeee"].unavailable is None


def test_slices_that_were_taken_away_are_remembered(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(DIVIDED)
    read(accelerators)
    nvml.show(FakeGpu(uuid="GPU-ffff", mig_capable=True))
    readings = by_id(read(accelerators))
    assert readings["GPU-ffff"].unavailable is None
    for slice_id in ("MIG-dddd", "MIG-eeee"):
        assert "MIG layout was changed" in (readings[slice_id].unavailable or "")


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMigMode"])
def test_a_lost_gpu_takes_its_slices_with_it_and_keeps_their_names(
    nvml: FakeNvml, function: str
) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST, DIVIDED)
    read(accelerators)
    nvml.show(FIRST, DIVIDED, failures={(function, "GPU-ffff"): pynvml.NVML_ERROR_GPU_IS_LOST})
    assert [(r.id, r.unavailable is None) for r in read(accelerators)] == [
        ("GPU-aaaa", True),
        ("MIG-dddd", False),
        ("MIG-eeee", False),
    ]


# --- one broken GPU (NVIDIA/k8s-device-plugin#2038, #231: Xid 79 took down every GPU) ---


@pytest.mark.parametrize(
    "function",
    ["HandleByIndex_v2", "UUID", "Name", "MigMode", "ComputeMode", "ComputeRunningProcesses_v3"],
)
def test_one_broken_gpu_does_not_hide_the_others_and_keeps_its_name(
    nvml: FakeNvml, function: str
) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST, SECOND, THIRD)
    read(accelerators)
    nvml.show(
        FIRST,
        SECOND,
        THIRD,
        failures={(f"nvmlDeviceGet{function}", "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST},
    )
    assert [(r.index, r.id, r.memory_mib, r.unavailable) for r in read(accelerators)] == [
        (0, "GPU-aaaa", 32768, None),
        (1, "GPU-bbbb", 32768, "NVML cannot read it: GPU is lost"),
        (2, "GPU-cccc", 32768, None),
    ]


def test_two_lost_gpus_are_not_taken_for_each_other(nvml: FakeNvml) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST, SECOND, THIRD)
    read(accelerators)
    code = pynvml.NVML_ERROR_GPU_IS_LOST
    lost = {("nvmlDeviceGetHandleByIndex_v2", uuid): code for uuid in ("GPU-aaaa", "GPU-cccc")}
    nvml.show(FIRST, SECOND, THIRD, failures=lost)
    assert [(r.index, r.id, r.unavailable is None) for r in read(accelerators)] == [
        (0, "GPU-aaaa", False),
        (1, "GPU-bbbb", True),
        (2, "GPU-cccc", False),
    ]


def test_a_gpu_broken_from_the_start_is_shown_by_its_position_until_it_has_a_name(
    nvml: FakeNvml,
) -> None:
    accelerators = NvmlAccelerators()
    failure = {("nvmlDeviceGetHandleByIndex_v2", "GPU-bbbb"): pynvml.NVML_ERROR_GPU_IS_LOST}
    nvml.show(FIRST, SECOND, failures=failure)
    _, broken = read(accelerators)
    assert (broken.id, broken.model, broken.memory_mib) == ("gpu-1", "unknown", 0)
    assert not broken.named
    assert broken.unavailable == "NVML cannot read it: GPU is lost"
    nvml.show(FIRST, SECOND)
    assert [(r.id, r.named) for r in read(accelerators)] == [("GPU-aaaa", True), ("GPU-bbbb", True)]


def test_a_gpu_that_is_no_longer_listed_is_remembered_and_the_rest_keep_their_ids(
    nvml: FakeNvml,
) -> None:
    accelerators = NvmlAccelerators()
    nvml.show(FIRST, SECOND, THIRD)
    read(accelerators)
    nvml.show(FIRST, THIRD)
    readings = by_id(read(accelerators))
    assert "no longer lists it" in (readings["GPU-bbbb"].unavailable or "")
    assert readings["GPU-cccc"].unavailable is None
    nvml.show(FIRST, SECOND, THIRD)
    assert all(reading.unavailable is None for reading in read(accelerators))


def test_a_gpu_is_itself_wherever_it_stands_in_the_list(nvml: FakeNvml) -> None:
    # nanoporetech/bonito#120, gpustack/gpustack#1633: numbers change, UUIDs do not.
    accelerators = NvmlAccelerators()
    nvml.show(FakeGpu(uuid="GPU-aaaa", used_mib=7), FakeGpu(uuid="GPU-bbbb", used_mib=8))
    before = {r.id: r.used_mib for r in read(accelerators)}
    nvml.show(FakeGpu(uuid="GPU-bbbb", used_mib=8), FakeGpu(uuid="GPU-aaaa", used_mib=7))
    assert {r.id: r.used_mib for r in read(accelerators)} == before
