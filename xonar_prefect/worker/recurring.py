"""Work that a worker does again and again, whatever becomes of it once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import httpx

from xonar_prefect.errors import XonarError

# Workers that were started together do not stay in step either.
_REGULAR_SPREAD = 0.1
_FAILURE_SPREAD = 0.5

_logger = logging.getLogger(__name__)


class Recurring:
    """Does one thing regularly, and at once when woken; never raises, never twice at a time.

    A failure is said in one line and tried again after pauses that grow and are never the same in
    two workers: those that found their server away together must not come back together.

    Args:
        what: What it is, as the subject of a sentence: "Reading the queue".
        work: The work.
        every_seconds: The pause after work that went well.
        most_seconds: The longest pause after failures.
        spread: Returns a number from 0 to 1, another one each time.
    """

    def __init__(
        self,
        what: str,
        work: Callable[[], Awaitable[object]],
        *,
        every_seconds: float,
        most_seconds: float,
        spread: Callable[[], float],
    ) -> None:
        self._what = what
        self._work = work
        self._every_seconds = every_seconds
        self._most_seconds = most_seconds
        self._spread = spread
        self._wake = anyio.Event()
        self._alone = anyio.Lock()

    def wake_up(self) -> None:
        """Have the work done at once, or once more if it is being done now."""
        self._wake.set()

    async def serve(self) -> None:
        """Do the work until cancelled."""
        pause = self._every_seconds
        while True:
            with anyio.move_on_after(pause):
                await self._wake.wait()
            self._wake = anyio.Event()
            if await self.do_once():
                pause = self._every_seconds * (1 + _REGULAR_SPREAD * self._spread())
            else:
                longer = min(2 * pause, self._most_seconds)
                pause = longer * (1 + _FAILURE_SPREAD * self._spread())

    async def do_once(self) -> bool:
        """Do the work now; return whether it went well."""
        async with self._alone:
            try:
                await self._work()
            except httpx.HTTPError as error:
                _logger.warning(
                    "%s failed, as the Prefect server did not answer (%s); trying again.",
                    self._what,
                    str(error).partition("\n")[0] or type(error).__name__,
                )
            except XonarError as error:
                _logger.error("%s", error)
            except Exception:  # it would end the worker, and with it everybody's queue
                _logger.exception("%s failed; trying again.", self._what)
            else:
                return True
            return False
