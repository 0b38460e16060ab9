"""Work that a worker does again and again, whatever becomes of it once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import anyio
import httpx

from xonar_prefect.errors import XonarError

# Workers that were started together do not stay in step either.
_REGULAR_SPREAD = 0.1
_FAILURE_SPREAD = 0.5
# The client asks a server that is away again and again, for minutes, and says nothing meanwhile.
_PATIENCE_SECONDS = 15.0

_logger = logging.getLogger(__name__)


class Recurring:
    """Does one thing regularly, and at once when woken; never raises, never twice at a time.

    What takes long is said while it does. A failure is said in one line and tried again after
    pauses that grow and are never the same in two workers: those that found their server away
    together must not come back together.

    Args:
        what: What it is, as the subject of a sentence: "Reading the queue".
        work: The work.
        every_seconds: The pause after work that went well.
        most_seconds: The longest pause after failures.
        spread: Returns a number from 0 to 1, another one each time.
        patience_seconds: What takes longer is said.
    """

    def __init__(
        self,
        what: str,
        work: Callable[[], Awaitable[object]],
        *,
        every_seconds: float,
        most_seconds: float,
        spread: Callable[[], float],
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._what = what
        self._work = work
        self._every_seconds = every_seconds
        self._most_seconds = most_seconds
        self._spread = spread
        self._patience_seconds = patience_seconds
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
                with self._said_if_slow():
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

    @contextlib.contextmanager
    def _said_if_slow(self) -> Iterator[None]:
        begun_at = time.monotonic()
        saying = asyncio.get_running_loop().call_later(
            self._patience_seconds,
            _logger.warning,
            "%s waits for more than %g s; is the Prefect server away? Trainings go on meanwhile.",
            self._what,
            self._patience_seconds,
        )
        try:
            yield
        finally:
            saying.cancel()
        taken_s = time.monotonic() - begun_at
        if taken_s > self._patience_seconds:
            _logger.info("%s goes on after %.0f s.", self._what, taken_s)
