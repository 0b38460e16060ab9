"""What the profiler needs from a framework; each has a module that provides it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.recording import Annotate

CONTEXT_MIB = 600
"""What a GPU's context takes beside everything that an allocator counts."""


class Tracer(Protocol):
    """A framework's own profiler."""

    @property
    def source(self) -> str:
        """What measured the active time, as a profile names it."""
        ...

    def start(self) -> Annotate | None:
        """Begin to trace; None where it cannot be done."""
        ...

    def stop(self) -> Sequence[StepTimes]:
        """End the trace and return its steps; empty where nothing can be read."""
        ...


class NoTracer:
    """Stands where no framework is that could trace."""

    source = "none"

    def start(self) -> Annotate | None:
        """Begin nothing."""
        return None

    def stop(self) -> Sequence[StepTimes]:
        """Return nothing."""
        return ()


class Framework(Protocol):
    """A framework as the training uses it; it is never imported for being asked."""

    def version(self) -> str | None:
        """Return name and version, if the training has imported it."""
        ...

    def is_used(self) -> bool:
        """Whether the training has computed with it, and not only imported it."""
        ...

    def gpu_model(self) -> str | None:
        """Return the model of the GPU that the training computes on; None on the processor."""
        ...

    def peak_memory_mib(self) -> int | None:
        """Return the peak on a GPU by its allocator's account, brought to that of the device."""
        ...

    def limited_memory(self, limit_mib: int) -> AbstractContextManager[None]:
        """Cap what its allocator takes on each GPU, if it starts while the body runs."""
        ...

    def tracer(self) -> Tracer:
        """Return its profiler."""
        ...
