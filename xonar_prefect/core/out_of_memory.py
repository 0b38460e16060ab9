"""Running out of device memory: recognised by what frameworks say, and judged by who took what.

No framework is imported: an error is known by the name of its class and by its words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

NEGLIGIBLE_RATIO = 0.1
"""Share of a device that others may use without having taken it from a training that has all."""

GROWTH_RATIO = 1.25
"""A peak that was too low is raised by this at least. The allocation that failed is unknown: it
may be one tensor or half the model, and every release that ends out of memory is work lost."""

# Their classes mean nothing else. TensorFlow's `ResourceExhaustedError` and JAX's
# `XlaRuntimeError` are not among them: a full disk or a message that is too long raises them too.
_CLASSES = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError"})

_WORDS = re.compile(
    r"""
      CUDA\ out\ of\ memory                        # PyTorch
    | HIP\ out\ of\ memory
    | CUDA(?:\ runtime|\ driver)?\ error:\ out\ of\ memory
    | (?:cuda)?ErrorMemoryAllocation
    | CUDA_ERROR_OUT_OF_MEMORY                     # the driver, by way of TensorFlow and JAX
    | CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)\w*ALLOC_FAILED
    | OOM\ when\ allocating                        # TensorFlow
    | ran\ out\ of\ memory\ trying\ to\ allocate
    | failed\ to\ allocate\ .*\ out\ of\ memory
    | RESOURCE_EXHAUSTED:.*(?:out\ of\ memory|OOM|failed\ to\ allocate)   # JAX
    | Out\ of\ memory\ (?:while\ trying\ to\ allocate|allocating)
    | (?:Cuda|NCCL).{0,20}failure.{0,20}out\ of\ memory                     # NCCL
    | torch\.\S*OutOfMemoryError
    | ResourceExhaustedError.*(?:memory|OOM)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# TensorFlow's allocator says so when it can do with less.
_HARMLESS = re.compile(r"not a failure|No space left on device", re.IGNORECASE)


def says_out_of_memory(line: str) -> bool:
    """Tell whether a line of output says that a device has no memory left.

    >>> says_out_of_memory("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
    True
    >>> says_out_of_memory("ResourceExhaustedError: model.ckpt; No space left on device")
    False
    """
    return _WORDS.search(line) is not None and _HARMLESS.search(line) is None


def last_words_of_memory(text: str) -> str | None:
    """Return the last line of a text that says so; None where none does."""
    return next((line for line in reversed(text.splitlines()) if says_out_of_memory(line)), None)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that led to it, means that a device has no memory left."""
    return out_of_memory_in(error) is not None


def out_of_memory_in(error: BaseException | None) -> BaseException | None:
    """Return the error that says so, of an error and those that led to it; None where none does."""
    for each in _chain(error):
        if type(each).__name__ in _CLASSES or says_out_of_memory(in_one_line(each)):
            return each
    return None


def in_one_line(error: BaseException) -> str:
    """Return class and words of an error, as the last line of a traceback has them."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # As Python prints it: what was hidden with `from None` led to nothing.
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What is known of a training that ran out of memory, on the tightest of its devices.

    Attributes:
        request_mib: What was reserved for it; None for the whole device.
        used_mib: The most it was seen to use; 0 when unknown.
        usable_mib: What the device could offer if nobody were on it; None when unknown.
        others_mib: What others used there when it ended: partners and strangers.
        offender: Name of the partner that used more than was reserved for it, if one did.
        offender_run_id: Its run.
        offender_mib: What it used.
    """

    request_mib: int | None
    used_mib: int = 0
    usable_mib: int | None = None
    others_mib: int = 0
    offender: str | None = None
    offender_run_id: str | None = None
    offender_mib: int = 0

    @property
    def is_own_fault(self) -> bool:
        """Whether it was given all it could rely on, so that it needs more than that.

        A partner over its own reservation, or a stranger, may have taken what was promised. Where
        nothing is known of the device, the training that failed is the one to be changed.
        """
        if self.offender is not None:
            return False
        if self.usable_mib is None:
            return True
        if self.request_mib is None:
            return self.others_mib <= NEGLIGIBLE_RATIO * self.usable_mib
        return self.usable_mib - self.others_mib >= self.request_mib

    @property
    def raised_peak_mib(self) -> int | None:
        """The least memory peak to assume from now on; None when it stays as it was."""
        if not self.is_own_fault:
            return None
        reached = max(self.used_mib, self.request_mib or 0)
        if not reached:
            return None
        raised = math.ceil(GROWTH_RATIO * reached)
        # More than the device can offer would be refused there for ever.
        return raised if self.usable_mib is None else min(raised, self.usable_mib)

    @property
    def sentence(self) -> str:
        """Say who took the memory."""
        if self.offender is not None:
            return f"{self.offender!r} beside it used more than was reserved for that."
        if not self.is_own_fault:
            reserved = "all" if self.request_mib is None else f"{self.request_mib} MiB"
            return (
                f"Others used {self.others_mib} MiB of the {self.usable_mib} MiB there, and "
                f"{reserved} of it was reserved for this training."
            )
        if self.request_mib is None:
            return "It had the whole device."
        return f"It was given the {self.request_mib} MiB that were reserved for it."
