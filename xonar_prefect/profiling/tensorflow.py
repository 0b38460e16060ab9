"""Everything that needs TensorFlow but the steps: its trace, its memory, its version.

It is never imported from here: what the training has not imported is not there to be measured.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wrapt

from xonar_prefect.profiling.recording import Annotate
from xonar_prefect.profiling.xplane import StepTimes, TraceError, read_directory

logger = logging.getLogger(__name__)

_TENSORFLOW = "tensorflow"
_PROFILER = "tensorflow.python.profiler.profiler_v2"
# From the allocator's peak to the device's: CUDA context and library workspaces are not in it.
_ALLOCATOR_RATIO = 1.15
_CONTEXT_MIB = 600
_MIB = 1024 * 1024


def version() -> str | None:
    """Return name and version of the framework, if the training has imported it."""
    number = getattr(sys.modules.get(_TENSORFLOW), "__version__", None)
    return None if number is None else f"{_TENSORFLOW} {number}"


def peak_memory_mib() -> int | None:
    """Return the peak on the GPU as the allocator tells it, brought to that of the device.

    None where it is unknown; TensorFlow says zero for that.
    """
    tensorflow = sys.modules.get(_TENSORFLOW)
    if tensorflow is None:
        return None
    try:
        peak = tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]
    except Exception:
        logger.debug("The allocator tells no peak.", exc_info=True)
        return None
    return round(peak / _MIB * _ALLOCATOR_RATIO + _CONTEXT_MIB) if peak > 0 else None


class Tracer:
    """TensorFlow's own profiler, for a few steps.

    There is one profiler in a process, and the user comes first: ours does not start where
    theirs runs, and is thrown away when theirs starts.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._directory: Path | None = None
        self._originals: list[tuple[Any, Any]] = []

    def start(self) -> Annotate | None:
        """Begin to trace; None where it cannot be done."""
        tensorflow = sys.modules.get(_TENSORFLOW)
        if tensorflow is None:
            return None
        directory = Path(tempfile.mkdtemp(prefix="xonar-trace-"))
        try:
            experimental = tensorflow.profiler.experimental
            experimental.start(str(directory))
        except Exception:
            logger.info("The steps are not traced: most likely another profiler is running.")
            logger.debug("The profiler did not start.", exc_info=True)
            shutil.rmtree(directory, ignore_errors=True)
            return None
        with self._lock:
            self._directory = directory
            self._give_way_on_start(experimental)
        return lambda mark: experimental.Trace(mark.value)

    def stop(self) -> tuple[StepTimes, ...]:
        """End the trace and read it; empty where nothing can be read."""
        directory = self._end(save=True)
        if directory is None:
            return ()
        try:
            return read_directory(directory)
        except TraceError as error:
            logger.info("The trace was not read: %s.", error)
        except Exception:
            logger.warning("The trace could not be read.", exc_info=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return ()

    def _end(self, *, save: bool) -> Path | None:
        with self._lock:
            directory, self._directory = self._directory, None
            if directory is None:
                return None
            for module, original in self._originals:
                module.start = original
            self._originals.clear()
            try:
                sys.modules[_TENSORFLOW].profiler.experimental.stop(save=save)
            except Exception:
                logger.warning("The trace could not be taken.", exc_info=True)
            if not save:
                shutil.rmtree(directory, ignore_errors=True)
        return directory

    def _give_way_on_start(self, experimental: Any) -> None:
        def give_way(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            self._end(save=False)
            return wrapped(*args, **kwargs)

        for module in (experimental, sys.modules.get(_PROFILER)):
            original = getattr(module, "start", None)
            if original is not None:
                self._originals.append((module, original))
                module.start = wrapt.FunctionWrapper(original, give_way)  # type: ignore[union-attr]


class _MemoryLimit:
    mib: int | None = None


@contextlib.contextmanager
def limited_memory(limit_mib: int) -> Iterator[None]:
    """Cap what TensorFlow's allocator takes on each GPU, if it starts while the body runs.

    The cap must be set after the import and before the first use of a GPU, and it cannot be taken
    back; what fails is logged.
    """
    _MemoryLimit.mib = limit_mib
    wrapt.when_imported(_TENSORFLOW)(_limit_memory)
    try:
        yield
    finally:
        _MemoryLimit.mib = None


def _limit_memory(tensorflow: Any) -> None:
    if _MemoryLimit.mib is None:
        return
    try:
        config = tensorflow.config
        gpus = config.list_physical_devices("GPU")
        for gpu in gpus:
            limit = config.LogicalDeviceConfiguration(memory_limit=_MemoryLimit.mib)
            config.set_logical_device_configuration(gpu, [limit])
        if gpus:
            _tolerate_growth(config.experimental)
    except Exception as error:  # noqa: BLE001
        # A RuntimeError means that the GPU is in use already.
        logger.warning("TensorFlow's memory was not capped: %s", error)


def _tolerate_growth(experimental: Any) -> None:
    """Let trainings ask for memory growth, as many do.

    TensorFlow refuses it on a capped device with an error that would end the training; the cap
    makes it unnecessary.
    """

    def tolerant(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            return wrapped(*args, **kwargs)
        except ValueError as error:
            logger.info("The memory cap of this run stands instead of memory growth: %s", error)
            return None

    if not isinstance(experimental.set_memory_growth, wrapt.FunctionWrapper):
        experimental.set_memory_growth = wrapt.FunctionWrapper(
            experimental.set_memory_growth, tolerant
        )
