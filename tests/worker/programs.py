"""The programs of this environment, also where it has only our own scripts."""

from __future__ import annotations

import sys
from pathlib import Path


def program(name: str) -> tuple[str, ...]:
    """Return how to start `xonar` or `prefect` with this very interpreter."""
    if name == "prefect":
        return (sys.executable, "-m", "prefect")
    return (str(Path(sys.executable).with_name(name)),)
