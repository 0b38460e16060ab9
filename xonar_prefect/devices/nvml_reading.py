"""One look at NVIDIA's devices: every GPU and MIG slice by itself, whatever the others do.

The vendor's module comes in as an argument; `nvml.py` owns it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.devices.nvml_health import absent_errors, own_problem
from xonar_prefect.devices.patience import PatientCalls, UnansweredError
from xonar_prefect.devices.process_ids import ids_here
from xonar_prefect.devices.visible import ListedDevice

_BYTES_PER_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A device under its names, with what was read of it."""

    device: ListedDevice
    reading: DeviceReading


class NvmlLook:
    """Reads the devices once and remembers whether NVML itself has to be started again.

    Args:
        nvml: The module `pynvml`, initialised.
        known: What was seen before, by device id; a device that fails keeps this identity.
        proc: Where `/proc` is.
        calls: Makes calls that may hang; the same for every look.
        answer_seconds: How long one GPU may take to answer.
    """

    def __init__(
        self,
        nvml: Any,
        known: Mapping[str, Seen],
        proc: Path,
        calls: PatientCalls,
        answer_seconds: float,
    ) -> None:
        self._nvml = nvml
        self._known = known
        self._proc = proc
        self._calls = calls
        self._answer_seconds = answer_seconds
        self._lasting = {
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_UNKNOWN,
        }
        self._absent = absent_errors(nvml)
        self.needs_restart = False

    def devices(self) -> list[Seen]:
        """Return what NVML lists and what it listed before, ordered by index.

        Raises:
            pynvml.NVMLError: NVML cannot even say how many GPUs there are.
            UnansweredError: It does not answer at all.
        """
        count = self._calls.call("count", self._nvml.nvmlDeviceGetCount, self._answer_seconds)
        by_position = [self._patiently(position) for position in range(count)]
        named = [seen for found in by_position if isinstance(found, list) for seen in found]
        missing = dict(self._known)
        for seen in named:
            missing.pop(seen.device.id, None)
        result: list[Seen] = []
        for position, found in enumerate(by_position):
            here = _nameless(position, found, missing) if isinstance(found, str) else found
            for seen in here:
                missing.pop(seen.device.id, None)
                reading = replace(seen.reading, index=len(result))
                result.append(replace(seen, reading=reading))
        gone = "the driver no longer lists it: it was lost, or its MIG layout was changed"
        result += [_unavailable(seen, gone) for seen in missing.values()]
        return sorted(result, key=lambda seen: (seen.reading.index, seen.device.id))

    def _patiently(self, position: int) -> list[Seen] | str:
        """Look at one GPU; where one hangs, the next may well hang in the same lock."""
        seconds = min(self._answer_seconds, 1.0) if self._calls.hangs() else self._answer_seconds
        try:
            return self._calls.call(f"GPU {position}", partial(self._gpu, position), seconds)
        except UnansweredError as error:
            return f"NVML cannot read it: {error}"

    def _gpu(self, position: int) -> list[Seen] | str:
        """Return the GPU or its slices; a text says why it does not even give its name."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(position)
            gpu_id = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            return self._failure(error)
        gpu = ListedDevice(id=gpu_id, gpu_index=position, gpu_id=gpu_id)
        try:
            problem = own_problem(nvml, handle)
            if not self._is_divided(handle):
                return [self._seen(handle, gpu, problem)]
            slices = self._slices(handle, gpu, problem)
        except nvml.NVMLError as error:
            return self._unread_gpu(gpu, self._failure(error))
        without = "its MIG mode is on but it has no slice; create one with `nvidia-smi mig`"
        return slices or [self._seen(handle, gpu, problem or without)]

    def _is_divided(self, handle: Any) -> bool:
        try:
            current_mode, _pending_mode = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._absent:
            return False
        return bool(current_mode == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _slices(self, gpu_handle: Any, gpu: ListedDevice, problem: str | None) -> list[Seen]:
        places = range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(gpu_handle))
        slices = (self._slice(gpu_handle, place, gpu, problem) for place in places)
        return [seen for seen in slices if seen is not None]

    def _slice(
        self, gpu_handle: Any, place: int, gpu: ListedDevice, problem: str | None
    ) -> Seen | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle, place)
            slice_id = nvml.nvmlDeviceGetUUID(handle)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            return None  # nothing at this place
        except nvml.NVMLError as error:
            self._failure(error)  # without a name it counts as no longer listed
            return None
        old_name = None
        with suppress(nvml.NVMLError):
            gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            compute_instance = nvml.nvmlDeviceGetComputeInstanceId(handle)
            old_name = f"MIG-{gpu.id}/{gpu_instance}/{compute_instance}"
        return self._seen(handle, replace(gpu, id=slice_id, old_name=old_name), problem)

    def _seen(self, handle: Any, device: ListedDevice, problem: str | None) -> Seen:
        try:
            name = self._nvml.nvmlDeviceGetName(handle)
            total, reserved, used = self._memory(handle)
            used_by_pid = self._used_by_pid(handle, total)
        except self._nvml.NVMLError as error:
            why = self._failure(error)
            if isinstance(error, self._absent):  # as on boards whose GPU uses the host's memory
                why += "; a device without memory figures of its own cannot be planned"
            return self._unread(device, why)
        if total == 0:
            return self._unread(device, "NVML reports no memory for it")
        if device.id != device.gpu_id and "MIG" not in name:
            # Old drivers give a slice its GPU's name; profiles of slices and GPUs must not mix.
            name = f"{name} MIG {total} MiB"
        reading = DeviceReading(
            id=device.id,
            index=device.gpu_index,
            model=name,
            memory_mib=total,
            reserved_mib=reserved,
            # Memory and processes are read one after the other, so their sum may be ahead.
            used_mib=max(used, sum(used_by_pid.values())),
            used_by_pid=used_by_pid,
            unavailable=problem,
            driver_keeps_memory=True,
        )
        return Seen(device=device, reading=reading)

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """Return total, reserved and used memory in MiB, rounded so that none is invented.

        `used` is without the reserve, except where only version 1 exists: there the driver's
        reserve is part of `used`.
        """
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            reserved_bytes = memory.reserved
        except (
            *self._absent,
            nvml.NVMLError_InvalidArgument,
            nvml.NVMLError_ArgumentVersionMismatch,
        ):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            reserved_bytes = 0
        return (
            memory.total // _BYTES_PER_MIB,
            math.ceil(reserved_bytes / _BYTES_PER_MIB),
            math.ceil(memory.used / _BYTES_PER_MIB),
        )

    def _used_by_pid(self, handle: Any, total_mib: int) -> dict[int, int]:
        nvml = self._nvml
        used_bytes: dict[int, int] = {}
        for list_processes in (
            nvml.nvmlDeviceGetComputeRunningProcesses_v3,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
            nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        ):
            # Too small: the list grew between asking for its length and for itself.
            with suppress(*self._absent, nvml.NVMLError_InsufficientSize):
                for process in list_processes(handle):
                    # "Not available" is None or a number beyond all memory.
                    if (process.usedGpuMemory or 0) > total_mib * _BYTES_PER_MIB:
                        continue
                    if process.usedGpuMemory is not None:
                        # One that computes and draws is in two lists with the same memory.
                        seen_bytes = used_bytes.get(process.pid, 0)
                        used_bytes[process.pid] = max(seen_bytes, process.usedGpuMemory)
        here = ids_here(used_bytes, self._proc)
        return {pid: used_bytes[host_pid] // _BYTES_PER_MIB for host_pid, pid in here.items()}

    def _unread_gpu(self, gpu: ListedDevice, why: str) -> list[Seen]:
        """Return an unreadable GPU as what it was: itself, or the slices it was divided into."""
        slices = [s for s in self._known.values() if s.device.gpu_id == gpu.id != s.device.id]
        return [_unavailable(seen, why) for seen in slices] or [self._unread(gpu, why)]

    def _unread(self, device: ListedDevice, why: str) -> Seen:
        known = self._known.get(device.id)
        return _unavailable(replace(known, device=device) if known else _never_read(device), why)

    def _failure(self, error: Any) -> str:
        if error.value in self._lasting:
            self.needs_restart = True
        return f"NVML cannot read it: {error}"


def _nameless(position: int, why: str, missing: Mapping[str, Seen]) -> list[Seen]:
    """Return what is known of a GPU that does not even give its UUID."""
    known = [seen for seen in missing.values() if seen.device.gpu_index == position]
    if known:
        return [_unavailable(seen, why) for seen in known]
    name = f"gpu-{position}"
    seen = _never_read(ListedDevice(id=name, gpu_index=position, gpu_id=name))
    return [_unavailable(replace(seen, reading=replace(seen.reading, named=False)), why)]


def _never_read(device: ListedDevice) -> Seen:
    reading = DeviceReading(
        id=device.id,
        index=device.gpu_index,
        model="unknown",
        memory_mib=0,
        unavailable="",
        driver_keeps_memory=True,
    )
    return Seen(device=device, reading=reading)


def _unavailable(seen: Seen, why: str) -> Seen:
    return replace(seen, reading=replace(seen.reading, used_by_pid={}, unavailable=why))
