"""Everything that needs PyTorch but the steps: its memory, its version, whether it is used.

It is never imported from here: what the training has not imported is not there to be measured.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import wrapt

from xonar_prefect.profiling.framework import CONTEXT_MIB, NoTracer, Tracer
from xonar_prefect.profiling.host_marks import WaitTracer
from xonar_prefect.profiling.torch_steps import steps_seen
from xonar_prefect.profiling.torch_tracer import TorchTracer

logger = logging.getLogger(__name__)

_TORCH = "torch"
_MIB = 1024 * 1024


def version() -> str | None:
    """Return name and version of the framework, if the training has imported it."""
    number = getattr(sys.modules.get(_TORCH), "__version__", None)
    return None if number is None else f"{_TORCH} {number}"


def is_used() -> bool:
    """Whether the training has computed with it."""
    return _cuda() is not None or steps_seen()


def gpu_model() -> str | None:
    """Return the model of the GPU that it computes on; None on the processor."""
    cuda = _cuda()
    return None if cuda is None else str(cuda.get_device_name(cuda.current_device()))


def peak_memory_mib() -> int | None:
    """Return the highest peak of a GPU by the allocator's account, with the context added.

    What the allocator has reserved counts, and not what tensors took of it: fragments of it are
    of no use to a partner.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    peak = max((cuda.max_memory_reserved(gpu) for gpu in range(cuda.device_count())), default=0)
    return round(peak / _MIB + CONTEXT_MIB) if peak > 0 else None


def tracer() -> Tracer:
    """Return what tells why steps were idle: PyTorch's profiler where there is a GPU.

    On the processor it would slow down every operation and write on standard error, for
    information only. How long a step waits for input is known without it; how long for other
    workers is not.
    """
    if _cuda() is not None:
        return TorchTracer(on_gpu=True)
    distributed = getattr(sys.modules.get(_TORCH), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return NoTracer()
    return WaitTracer()


def _cuda() -> Any | None:
    """Return `torch.cuda` once the training has begun to use it."""
    cuda = getattr(sys.modules.get(_TORCH), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:
        logger.debug("PyTorch does not tell whether it uses CUDA.", exc_info=True)
        return None


class _MemoryLimit:
    mib: int | None = None


@contextlib.contextmanager
def limited_memory(limit_mib: int) -> Iterator[None]:
    """Cap what PyTorch's allocator takes on each GPU, if CUDA starts while the body runs.

    A training that exceeds its cap gets an out-of-memory error of its own, whatever else is free on
    the GPU. What fails is logged.
    """
    _MemoryLimit.mib = limit_mib
    wrapt.when_imported(_TORCH)(_limit_memory)
    try:
        yield
    finally:
        _MemoryLimit.mib = None


def _limit_memory(torch: Any) -> None:
    if _MemoryLimit.mib is None:
        return
    try:
        # Setting a cap starts CUDA, which would take memory of a training that never uses it, and
        # break one that forks before it does. This waits until the training itself starts it.
        torch.cuda._lazy_call(lambda: _cap(torch.cuda))
    except Exception as error:  # noqa: BLE001
        logger.warning("PyTorch's memory was not capped: %s", error)


def _cap(cuda: Any) -> None:
    if _MemoryLimit.mib is None:
        return
    try:
        for gpu in range(cuda.device_count()):
            total = cuda.get_device_properties(gpu).total_memory
            fraction = min(1.0, _MemoryLimit.mib * _MIB / total)
            cuda.set_per_process_memory_fraction(fraction, gpu)
    except Exception as error:  # noqa: BLE001
        # Called while CUDA starts, where an error would end the training.
        logger.warning("PyTorch's memory was not capped: %s", error)
