"""Waiting for a condition, in place of sleeping for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""How long to wait for what should come at once: on a busy machine it may take its time."""


def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as the condition holds.

    Raises:
        AssertionError: It did not come to hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold in time"
        time.sleep(0.01)
