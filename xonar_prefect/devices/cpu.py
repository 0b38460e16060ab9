"""Processor cores that stand in for accelerators where there is no GPU.

Two trainings pinned to one core take turns on it as two on a GPU do, so gains are measured there
and not simulated.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.devices.host_memory import HostMemory, anonymous_bytes, host_memory
from xonar_prefect.errors import InvalidValueError, UnknownDeviceError

_BYTES_PER_MIB = 1024 * 1024
# TensorFlow's parameter servers wait for each other in inter-op threads and need four, even on
# one core; threads that wait cost nothing.
_INTER_OP_THREADS = 4
_CORE = "CPU core "


class CpuAccelerators:
    """Cores as devices `cpu-N`; each has an even share of the host's memory.

    Args:
        cores: The cores, by the kernel's numbers.
        available_cores: The cores this process may use now.
        memory: What memory there is now.
        used_bytes: What a process holds; None when it is gone.
        proc: Where `/proc` is, for the device model.
    """

    def __init__(
        self,
        cores: Sequence[int],
        *,
        available_cores: Callable[[], Collection[int]] = lambda: os.sched_getaffinity(0),
        memory: Callable[[], HostMemory] = host_memory,
        used_bytes: Callable[[int], int | None] = anonymous_bytes,
        proc: Path = Path("/proc"),
    ) -> None:
        if not cores:
            raise InvalidValueError("cores", tuple(cores), "at least one processor core")
        self._core_by_id = {f"cpu-{core}": core for core in sorted(set(cores))}
        self._available_cores = available_cores
        self._memory = memory
        self._used_bytes = used_bytes
        self._model = core_model(proc)

    @property
    def kind(self) -> str:
        """`"cpu"`."""
        return "cpu"

    def read(self, processes: Mapping[str, Sequence[int]]) -> tuple[DeviceReading, ...]:
        """Read every core and the memory of our trainings on it.

        A training on several cores counts for an even part on each. What the host's other
        processes hold is spread evenly over the cores.
        """
        ours = {id_: set(processes.get(id_, ())) for id_ in self._core_by_id}
        places = Counter(pid for pids in ours.values() for pid in pids)
        share_bytes = {}
        for pid, count in places.items():
            used_bytes = self._used_bytes(pid)
            if used_bytes is not None:
                share_bytes[pid] = used_bytes // count
        memory = self._memory()
        ours_bytes = sum(share_bytes[pid] * places[pid] for pid in share_bytes)
        foreign_bytes = max(0, memory.total_bytes - memory.available_bytes - ours_bytes)
        count = len(self._core_by_id)
        available = self._available_cores()
        readings = []
        for device_id, core in self._core_by_id.items():
            here = {pid: share_bytes[pid] for pid in sorted(ours[device_id] & share_bytes.keys())}
            used_bytes_here = sum(here.values()) + math.ceil(foreign_bytes / count)
            readings.append(
                DeviceReading(
                    id=device_id,
                    index=core,
                    model=self._model,
                    memory_mib=memory.total_bytes // count // _BYTES_PER_MIB,
                    used_mib=math.ceil(used_bytes_here / _BYTES_PER_MIB),
                    used_by_pid={pid: used // _BYTES_PER_MIB for pid, used in here.items()},
                    unavailable=None if core in available else _not_available(core),
                )
            )
        return tuple(readings)

    def environment(
        self, device_ids: Sequence[str], memory_limit_mib: int | None
    ) -> dict[str, str]:
        """Return the variables that keep a process off GPUs and to as many threads as cores.

        The limit is not enforced: no framework caps its memory on a processor.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        del memory_limit_mib
        variables = {"CUDA_VISIBLE_DEVICES": ""}
        cores = self.processors(device_ids)
        if cores is not None:
            variables["OMP_NUM_THREADS"] = str(len(cores))
            variables["TF_NUM_INTRAOP_THREADS"] = str(len(cores))
            variables["TF_NUM_INTEROP_THREADS"] = str(max(_INTER_OP_THREADS, len(cores)))
        return variables

    def processors(self, device_ids: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cores that these devices are; None for a run that uses no device.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        for device_id in device_ids:
            if device_id not in self._core_by_id:
                raise UnknownDeviceError(device_id, self._core_by_id)
        return tuple(sorted({self._core_by_id[id_] for id_ in device_ids})) or None

    def close(self) -> None:
        """Do nothing: no driver is held."""


def core_model(proc: Path = Path("/proc")) -> str:
    """Return the device model of a core of this host."""
    return f"{_CORE}({processor_model(proc)})"


def is_core_model(model: str) -> bool:
    """Tell whether a device model is that of a core, of this host or another one."""
    return model.startswith(_CORE)


def processor_model(proc: Path = Path("/proc")) -> str:
    """Return the processor's name without trade marks, the same at every start of this host."""
    try:
        text = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if match is None:
        return platform.machine()
    name = re.sub(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b|@", " ", match[1], flags=re.IGNORECASE)
    return " ".join(name.split())


def _not_available(core: int) -> str:
    return f"core {core} is not among those this process may use; see `taskset -p` of the worker"
