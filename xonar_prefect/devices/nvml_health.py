"""What a GPU itself says against using it: a mode that forbids sharing, memory that is broken.

The vendor's module comes in as an argument; `nvml.py` owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def absent_errors(nvml: Any) -> tuple[type[Exception], ...]:
    """Return the errors that say a figure does not exist here or is not for us to see.

    They say nothing against the device: a GPU without ECC memory is no broken GPU.
    """
    return (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_NoData,
        nvml.NVMLError_VgpuEccNotSupported,
    )


def own_problem(nvml: Any, gpu: Any) -> str | None:
    """Return why nothing may be released to this GPU, where it says so itself.

    Raises:
        pynvml.NVMLError: The GPU cannot be asked.
    """
    checks: tuple[Callable[[Any, Any], str | None], ...] = (
        _mode,
        _memory_errors,
        _broken_rows,
        _broken_pages,
    )
    return next(filter(None, (_ask(check, nvml, gpu) for check in checks)), None)


def _ask(check: Callable[[Any, Any], str | None], nvml: Any, gpu: Any) -> str | None:
    try:
        return check(nvml, gpu)
    except absent_errors(nvml):
        return None


def _mode(nvml: Any, gpu: Any) -> str | None:
    mode = nvml.nvmlDeviceGetComputeMode(gpu)
    if mode == nvml.NVML_COMPUTEMODE_DEFAULT:
        return None
    name = "prohibited" if mode == nvml.NVML_COMPUTEMODE_PROHIBITED else "exclusive"
    return f"its compute mode is {name}; set it back with `nvidia-smi --compute-mode=DEFAULT`"


def _memory_errors(nvml: Any, gpu: Any) -> str | None:
    count = nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    if count == 0:
        return None
    return f"uncorrected memory errors since the driver was loaded: {count}; reset the GPU"


def _broken_rows(nvml: Any, gpu: Any) -> str | None:
    _corrected, _uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(gpu)
    if failed:
        return "broken rows of its memory could not be replaced; have the GPU looked at"
    if pending:
        return "broken rows of its memory wait to be replaced; reset the GPU"
    return None


def _broken_pages(nvml: Any, gpu: Any) -> str | None:
    # What GPUs before Ampere have in place of rows.
    if nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == nvml.NVML_FEATURE_DISABLED:
        return None
    return "broken pages of its memory wait to be retired; reset the GPU"
