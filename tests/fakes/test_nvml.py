"""The fake library keeps the real one's promises, as far as they are relied on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import FakeGpu, FakeNvml, FakeProcess

GPU = FakeGpu(uuid="GPU-aaaa", processes=(FakeProcess(pid=7, memory_mib=3),))


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[FakeNvml]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    with fake_nvml.loaded(tmp_path) as fake:
        fake.show(GPU)
        yield fake


def test_a_child_process_loads_it_by_the_real_ones_name(nvml: FakeNvml) -> None:
    program = (
        "import pynvml as n; n.nvmlInit(); handle = n.nvmlDeviceGetHandleByIndex(0); "
        "print(n.nvmlDeviceGetUUID(handle), n.nvmlSystemGetDriverVersion())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **nvml.environment()},
    )
    assert result.stdout.split() == ["GPU-aaaa", "570.86.15"]


def test_nothing_works_before_it_is_started_and_after_it_is_shut_down(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def test_starts_are_counted(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1


def test_a_handle_ends_with_the_start_it_was_made_in(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(handle)


def test_version_1_counts_the_reserve_as_used_and_version_2_does_not(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-aaaa")
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert first.used == second.used + second.reserved
    assert first.free == second.free == second.total - second.used - second.reserved


def test_a_struct_of_another_version_is_refused(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=0x01000028)


def test_lists_of_processes_ask_for_room_first(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    library = ctypes.CDLL(str(nvml.library))
    count = ctypes.c_uint(0)
    code = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    assert (code, count.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 1)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle) == []


def test_what_is_not_there_is_not_found(nvml: FakeNvml) -> None:
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)


def test_pynvml_is_left_as_it_was(tmp_path: Path) -> None:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    before = (pynvml.CDLL, pynvml.nvmlLib, os.environ.get(fake_nvml.STATE_VARIABLE))
    with fake_nvml.loaded(tmp_path):
        pynvml.nvmlInit()
    assert before == (pynvml.CDLL, pynvml.nvmlLib, os.environ.get(fake_nvml.STATE_VARIABLE))
