"""Calls that may never return: drivers hang, and take the thread that called them with them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class UnansweredError(Exception):
    """A call has not returned in time, or an earlier one of its name still has not."""


class PatientCalls:
    """Makes each call in a thread of its own, and gives up waiting after a while.

    A call that hangs keeps its thread, and its name is refused at once until it has returned: so
    there are never more such threads than names. One caller at a time.
    """

    def __init__(self) -> None:
        self._hanging: dict[str, threading.Thread] = {}

    def hangs(self, name: str | None = None) -> bool:
        """Tell whether a call of this name, or any, has not returned yet."""
        self._hanging = {key: each for key, each in self._hanging.items() if each.is_alive()}
        return bool(self._hanging) if name is None else name in self._hanging

    def call(self, name: str, work: Callable[[], _T], seconds: float) -> _T:
        """Return what the work returns, or raise what it raises.

        What a call returns or raises after it was given up is dropped.

        Raises:
            UnansweredError: It has not returned within this time.
        """
        if self.hangs(name):
            raise UnansweredError("it has not answered for a while")
        outcome: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcome.put((work(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where it was called
                outcome.put((None, error))

        thread = threading.Thread(target=run, name=f"xonar {name}", daemon=True)
        thread.start()
        try:
            value, error = outcome.get(timeout=seconds)
        except queue.Empty:
            self._hanging[name] = thread
            raise UnansweredError(f"it has not answered within {seconds:g} s") from None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]
