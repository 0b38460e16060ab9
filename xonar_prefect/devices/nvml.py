"""NVIDIA GPUs and MIG slices; the only owner of the vendor's module `pynvml`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xonar_prefect.devices.backoff import Backoff
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.devices.mps import keep_off_others
from xonar_prefect.devices.nvml_reading import NvmlLook, Seen
from xonar_prefect.devices.patience import PatientCalls, UnansweredError
from xonar_prefect.devices.visible import names_no_device, select
from xonar_prefect.errors import (
    DeviceError,
    DriverMismatchError,
    NoDeviceError,
    UnknownDeviceError,
)

# Without a persistent driver the first start wakes every GPU, which takes seconds for each.
_FIRST_START_SECONDS = 90.0


class NvmlAccelerators:
    """The GPUs of this host that the worker may use, by UUID; a GPU in MIG mode as its slices.

    NVML is started at the first `read`. When it reports a lost device, or was shut down by
    somebody else, it is started again at the next `read`, and then at growing intervals.

    Args:
        visible: The worker's own `CUDA_VISIBLE_DEVICES`; None for all devices.
        proc: Where `/proc` is.
        clock: Seconds that only grow.
        answer_seconds: How long NVML, and each GPU, may take to answer.
    """

    def __init__(
        self,
        *,
        visible: str | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        answer_seconds: float = 5.0,
    ) -> None:
        self._visible = visible
        self._proc = proc
        self._answer_seconds = answer_seconds
        self._calls = PatientCalls()
        self._starts = 0
        self._start_seconds = max(answer_seconds, _FIRST_START_SECONDS)
        self._restart = Backoff(clock)
        self._retry = Backoff(clock)
        self._failure: DeviceError | None = None
        self._allowed: frozenset[str] = frozenset()
        self._allowed_is_settled = False
        self._known: dict[str, Seen] = {}

    @property
    def kind(self) -> str:
        """`"nvidia"`."""
        return "nvidia"

    def read(self, processes: Mapping[str, Sequence[int]]) -> tuple[DeviceReading, ...]:
        """Read every device that the worker may use; NVML sees all processes by itself.

        Raises:
            NoDeviceError: There is no NVIDIA driver.
            DriverMismatchError: The driver was upgraded and not yet loaded.
            VisibleDevicesError: `CUDA_VISIBLE_DEVICES` names what is not there.
            DeviceError: NVML does not answer.
        """
        del processes
        if names_no_device(self._visible):
            return ()
        found = self._found()
        # A GPU that never gave its name is not remembered: it gets its true name when it can.
        self._known = {s.device.id: s for s in found if s.reading.memory_mib > 0}
        if not self._allowed_is_settled:
            self._allowed = select(self._visible, [seen.device for seen in found])
            # Indices move when a GPU falls out of the list, so they are looked up once; but not
            # before every GPU has given its name.
            self._allowed_is_settled = self._visible is not None and len(self._known) == len(found)
        return tuple(seen.reading for seen in found if seen.device.id in self._allowed)

    def _found(self) -> list[Seen]:
        """Look at all devices; while NVML as a whole fails, only now and then."""
        if self._failure is not None and not self._retry.take():
            raise self._failure.with_traceback(None)
        try:
            found = self._look()
        except DeviceError as error:
            self._failure = error
            self._retry.plan()
            raise
        self._failure = None
        self._retry.reset()
        return found

    def _look(self) -> list[Seen]:
        nvml = self._connect()
        look = NvmlLook(nvml, self._known, self._proc, self._calls, self._answer_seconds)
        try:
            found = look.devices()
        except UnansweredError as error:
            raise DeviceError(
                f"NVML does not list the GPUs: {error}; see whether `nvidia-smi` hangs too, and "
                "reboot if it does."
            ) from error
        except nvml.NVMLError as error:
            self.close()
            raise DeviceError(
                f"NVML does not list the GPUs ({error}); see whether `nvidia-smi` does, and "
                "restart the container or load the driver again."
            ) from error
        if look.needs_restart:
            self._restart.plan()
        else:
            self._restart.reset()
        return found

    def environment(
        self, device_ids: Sequence[str], memory_limit_mib: int | None
    ) -> dict[str, str]:
        """Return the variables that confine a process to these devices.

        They keep TensorFlow and JAX from taking all memory at once. The limit binds JAX only:
        the other frameworks have no variable for it. `NVIDIA_VISIBLE_DEVICES` is left alone: it
        speaks to container runtimes, which CUDA in a process does not read. A process can use
        one MIG slice; of several, CUDA shows it the first.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        readings = [self._known_reading(device_id) for device_id in device_ids]
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(device_ids),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            **keep_off_others(os.environ, os.getuid()),
        }
        smallest_mib = min((reading.memory_mib for reading in readings), default=0)
        if memory_limit_mib is not None and smallest_mib > 0:
            # Rounded down, a limit is kept; at zero JAX would take no memory at all.
            thousandths = math.floor(1000 * memory_limit_mib / smallest_mib)
            fraction = min(max(thousandths, 1), 1000) / 1000
            variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{fraction:.3f}"
        return variables

    def processors(self, device_ids: Sequence[str]) -> tuple[int, ...] | None:
        """Return None: a training on a GPU may run on any core.

        Raises:
            UnknownDeviceError: An id is none of ours.
        """
        for device_id in device_ids:
            self._known_reading(device_id)
        return None

    def close(self) -> None:
        """Shut NVML down; harmless when repeated, and a later `read` starts it again."""
        if self._starts == 0 or self._calls.hangs():
            return  # NVML cannot be shut down under a call that hangs in it
        with suppress(_pynvml().NVMLError, UnansweredError):
            self._calls.call("stop", self._stop, self._answer_seconds)

    def _start(self) -> None:
        _pynvml().nvmlInit()
        self._starts += 1  # also when nobody waits for it any more

    def _stop(self) -> None:
        # NVML counts: it lets go of the driver only with the last.
        while self._starts > 0:
            self._starts -= 1
            _pynvml().nvmlShutdown()

    def _known_reading(self, device_id: str) -> DeviceReading:
        if device_id not in self._known:
            self.read({})
        known = {id_: self._known[id_].reading for id_ in self._allowed & self._known.keys()}
        if device_id not in known:
            raise UnknownDeviceError(device_id, sorted(known))
        return known[device_id]

    def _connect(self) -> Any:
        nvml = _pynvml()
        if self._restart.take():
            self.close()
        if self._starts > 0:
            return nvml
        try:
            self._calls.call("start", self._start, self._start_seconds)
        except UnansweredError as error:
            raise DeviceError(
                f"NVML cannot be started: {error}; see whether `nvidia-smi` hangs too, and reboot "
                "if it does."
            ) from error
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
            raise NoDeviceError(f"the NVIDIA driver is missing or not loaded ({error})") from error
        except nvml.NVMLError_LibRmVersionMismatch as error:
            raise DriverMismatchError(str(error)) from error
        except nvml.NVMLError as error:
            raise DeviceError(
                f"NVML cannot be started ({error}); see whether `nvidia-smi` works, and restart "
                "the container or load the driver again."
            ) from error
        self._start_seconds = self._answer_seconds
        return nvml


def _pynvml() -> Any:
    import pynvml

    return pynvml
