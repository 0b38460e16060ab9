"""Wakes the worker at the moment a process ends, whether it is our child or adopted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class ExitWatch:
    """Calls back when one of the watched processes has ended."""

    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._descriptors: set[int] = set()

    def watch(self, pid: int) -> None:
        """Watch a process; one that has ended already is reported at once."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            # Gone, or a kernel before 5.3: then the regular look at all slots finds it.
            self._on_exit()
            return
        self._descriptors.add(descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._ended, descriptor)

    def close(self) -> None:
        """Stop watching."""
        for descriptor in list(self._descriptors):
            self._release(descriptor)

    def _ended(self, descriptor: int) -> None:
        self._release(descriptor)
        self._on_exit()

    def _release(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._descriptors.discard(descriptor)
        os.close(descriptor)
