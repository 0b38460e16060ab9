"""Waiting for a condition, in place of sleeping for a while."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return as soon as the condition holds.

    Raises:
        AssertionError: It did not come to hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold in time"
        time.sleep(0.01)
