"""Everything that needs JAX: its trace, its memory, its version.

It is never imported from here. JAX has no steps of its own, so they are marked by the user; its
memory is capped by its environment, which must be set before the interpreter starts.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from xonar_prefect.profiling.file_tracer import FileTracer
from xonar_prefect.profiling.framework import CONTEXT_MIB
from xonar_prefect.profiling.recording import Mark

logger = logging.getLogger(__name__)

_JAX = "jax"
_BACKENDS = "jax._src.xla_bridge"
_PROFILER = "jax._src.profiler"
_MIB = 1024 * 1024


def version() -> str | None:
    """Return name and version of the framework, if the training has imported it."""
    number = getattr(sys.modules.get(_JAX), "__version__", None)
    return None if number is None else f"{_JAX} {number}"


def is_used() -> bool:
    """Whether the training has computed with it: asking JAX itself would start it."""
    return bool(getattr(sys.modules.get(_BACKENDS), "_backends", None))


def gpu_model() -> str | None:
    """Return the model of the GPU that it computes on; None on the processor."""
    return next((str(device.device_kind) for device in _gpus()), None)


def peak_memory_mib() -> int | None:
    """Return the highest peak of a GPU by the allocator's account, with the context added."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in _gpus()]
    peak = max(peaks, default=0)
    return round(peak / _MIB + CONTEXT_MIB) if peak > 0 else None


@contextlib.contextmanager
def limited_memory(limit_mib: int) -> Iterator[None]:  # noqa: ARG001
    """Do nothing: `XLA_PYTHON_CLIENT_MEM_FRACTION`, which the worker sets, caps it."""
    yield


def tracer() -> FileTracer:
    """Return JAX's profiler."""
    return Tracer()


class Tracer(FileTracer):
    """JAX's own profiler, for a few steps."""

    source = "jax"

    def _is_there(self) -> bool:
        return is_used()

    def _begin(self, directory: Path) -> None:
        profiler = sys.modules[_JAX].profiler
        # Nothing is read of what Python calls, and to note every call makes steps longer.
        if (options := getattr(profiler, "ProfileOptions", None)) is None:  # before JAX 0.6.1
            profiler.start_trace(str(directory))
            return
        quiet = options()
        quiet.python_tracer_level = 0
        profiler.start_trace(str(directory), profiler_options=quiet)

    def _finish(self, *, save: bool) -> None:  # noqa: ARG002
        sys.modules[_JAX].profiler.stop_trace()

    def _mark(self, mark: Mark) -> AbstractContextManager[object]:
        annotation: AbstractContextManager[object] = sys.modules[_JAX].profiler.TraceAnnotation(
            mark.value
        )
        return annotation

    def _starters(self) -> Sequence[tuple[Any, str]]:
        modules = (sys.modules[_JAX].profiler, sys.modules.get(_PROFILER))
        return [(module, "start_trace") for module in modules if module is not None]


def _gpus() -> list[Any]:
    if not is_used():
        return []
    try:
        return [each for each in sys.modules[_JAX].local_devices() if each.platform == "gpu"]
    except Exception:
        logger.debug("JAX does not tell its devices.", exc_info=True)
        return []
