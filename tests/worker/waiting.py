"""Wait for a condition with a deadline, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.waiting import PATIENCE_SECONDS

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], seconds: float = PATIENCE_SECONDS
) -> T:
    """Return the condition's value as soon as it is true.

    Raises:
        AssertionError: It was not within the given time.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[return-value]
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.02)
