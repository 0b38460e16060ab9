"""Let deep-learning trainings share GPUs safely and well, from Prefect.

Importing this package loads nothing heavy: the names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from xonar_prefect._version import __version__

if TYPE_CHECKING:
    from xonar_prefect.profiling import step, steps
    from xonar_prefect.tasks import XonarTask, xonar_task

_HOME = {
    "XonarTask": "xonar_prefect.tasks",
    "step": "xonar_prefect.profiling",
    "steps": "xonar_prefect.profiling",
    "xonar_task": "xonar_prefect.tasks",
}

__all__ = ["XonarTask", "__version__", "step", "steps", "xonar_task"]


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
