"""Everything that needs TensorFlow but the steps: its trace, its memory, its version.

It is never imported from here: what the training has not imported is not there to be measured.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import wrapt

from xonar_prefect.profiling.file_tracer import FileTracer
from xonar_prefect.profiling.framework import CONTEXT_MIB
from xonar_prefect.profiling.recording import Mark

logger = logging.getLogger(__name__)

_TENSORFLOW = "tensorflow"
_PROFILER = "tensorflow.python.profiler.profiler_v2"
_CONTEXT = "tensorflow.python.eager.context"
# From the allocator's peak to the device's: library workspaces are not in it.
_ALLOCATOR_RATIO = 1.15
_MIB = 1024 * 1024


def version() -> str | None:
    """Return name and version of the framework, if the training has imported it."""
    number = getattr(sys.modules.get(_TENSORFLOW), "__version__", None)
    return None if number is None else f"{_TENSORFLOW} {number}"


def is_used() -> bool:
    """Whether the training has computed with it: asking TensorFlow itself would start it."""
    context = getattr(sys.modules.get(_CONTEXT), "_context", None)
    return bool(getattr(context, "_initialized", False))


def gpu_model() -> str | None:
    """Return the model of the GPU that it computes on; None on the processor."""
    if not is_used():
        return None
    try:
        config = sys.modules[_TENSORFLOW].config
        gpus = config.list_physical_devices("GPU")
        if not gpus:
            return None
        return str(config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))
    except Exception:
        logger.debug("TensorFlow does not tell its devices.", exc_info=True)
        return None


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
    return round(peak / _MIB * _ALLOCATOR_RATIO + CONTEXT_MIB) if peak > 0 else None


def tracer() -> FileTracer:
    """Return TensorFlow's profiler."""
    return Tracer()


class Tracer(FileTracer):
    """TensorFlow's own profiler, for a few steps."""

    source = "tensorflow"

    def _is_there(self) -> bool:
        return _TENSORFLOW in sys.modules

    def _begin(self, directory: Path) -> None:
        sys.modules[_TENSORFLOW].profiler.experimental.start(str(directory))

    def _finish(self, *, save: bool) -> None:
        sys.modules[_TENSORFLOW].profiler.experimental.stop(save=save)

    def _mark(self, mark: Mark) -> AbstractContextManager[object]:
        trace: AbstractContextManager[object] = sys.modules[
            _TENSORFLOW
        ].profiler.experimental.Trace(mark.value)
        return trace

    def _starters(self) -> Sequence[tuple[Any, str]]:
        modules = (sys.modules[_TENSORFLOW].profiler.experimental, sys.modules.get(_PROFILER))
        return [(module, "start") for module in modules if module is not None]


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
