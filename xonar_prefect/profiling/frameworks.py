"""The frameworks that are known, and which of them a training uses.

A script may import several: TensorFlow comes along with TensorBoard, Keras runs on any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from xonar_prefect.profiling import jax, tensorflow, torch
from xonar_prefect.profiling.framework import Framework, NoTracer, Tracer

KNOWN: tuple[Framework, ...] = (torch, tensorflow, jax)


def current(known: Sequence[Framework] = KNOWN) -> Framework | None:
    """Return the framework that the training computes with; None where there is none."""
    loaded = [framework for framework in known if framework.version() is not None]
    used = [framework for framework in loaded if framework.is_used()]
    return next(iter(used or loaded), None)


def version(known: Sequence[Framework] = KNOWN) -> str | None:
    """Return name and version of the framework that the training computes with."""
    framework = current(known)
    return None if framework is None else framework.version()


def gpu_model(known: Sequence[Framework] = KNOWN) -> str | None:
    """Return the model of the GPU that the training computes on; None where on none."""
    models = (framework.gpu_model() for framework in known if framework.is_used())
    return next((model for model in models if model is not None), None)


def peak_memory_mib(known: Sequence[Framework] = KNOWN) -> int | None:
    """Return the highest peak that an allocator tells; None where none does."""
    peaks = [framework.peak_memory_mib() for framework in known]
    return max((peak for peak in peaks if peak is not None), default=None)


def tracer(known: Sequence[Framework] = KNOWN) -> Tracer:
    """Return the profiler of the framework that the training computes with."""
    framework = current(known)
    return NoTracer() if framework is None else framework.tracer()


@contextlib.contextmanager
def limited_memory(limit_mib: int, known: Sequence[Framework] = KNOWN) -> Iterator[None]:
    """Cap the allocators that start while the body runs."""
    with ExitStack() as stack:
        for framework in known:
            stack.enter_context(framework.limited_memory(limit_mib))
        yield
