"""When a worker looks at its trainings and decides: at every exit, and regularly."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import httpx
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.errors import XonarError
from xonar_prefect.worker.wiring import Parts

_logger = logging.getLogger(__name__)


class Turns:
    """Takes one turn after the other; in each, started trainings first and then held ones.

    Args:
        parts: The worker's parts.
        clock: The time.
        poll_seconds: How often the whole queue is read.
        watch_seconds: How often running trainings are looked at.
        is_synced: Whether the server knows this worker; before that there is nothing to do.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        clock: Callable[[], float],
        poll_seconds: float,
        watch_seconds: float,
        is_synced: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._watch_seconds = watch_seconds
        self._is_synced = is_synced
        self._wake = anyio.Event()
        self._turn = anyio.Lock()
        self._recovered = False
        self._releases = True
        self._queue_read_at_s: float | None = None

    def wake_up(self) -> None:
        """Have a turn taken at once: a process has ended, or a slot is free."""
        self._wake.set()

    def release_nothing_more(self) -> None:
        """Look after what runs, and start nothing any more."""
        self._releases = False

    async def serve(self) -> None:
        """Take turns until cancelled."""
        pause = self._watch_seconds
        while True:
            with anyio.move_on_after(pause):
                await self._wake.wait()
            self._wake = anyio.Event()
            went_well = await self.take() is not None
            # What fails is not tried, and said, twice a second.
            pause = self._watch_seconds if went_well else min(2 * pause, self._poll_seconds)

    async def take(self, *, fresh: bool = False) -> list[FlowRun] | None:
        """Take one turn; never raise, for that would end the worker and everybody's queue.

        Args:
            fresh: Read the queue again, however lately it was read.

        Returns:
            The runs that were released; None when the turn failed.
        """
        async with self._turn:
            try:
                return await self._look_and_decide(fresh=fresh)
            except httpx.HTTPError as error:
                _logger.warning("The Prefect server did not answer (%s); trying again.", error)
            except XonarError as error:
                _logger.error("%s", error)
            except Exception:
                _logger.exception("A turn of the worker failed; trying again.")
            return None

    async def _look_and_decide(self, *, fresh: bool) -> list[FlowRun]:
        parts = self._parts
        if not self._is_synced():
            return []
        if not self._recovered:
            await self._recover()
        changed = await parts.supervision.look(parts.devices.look)
        changed = await parts.health.look() or changed
        due = fresh or self._is_due()
        if not self._releases or not (changed or due or parts.dispatch.has_more_to_explain):
            return []
        if due:
            parts.locks.keep()
            await parts.slots.settle()
            await parts.claims.settle()
            await parts.recovery.put_back_orphans()
            self._queue_read_at_s = self._clock()
        return await parts.dispatch.decide(fresh=due)

    def _is_due(self) -> bool:
        read_at_s = self._queue_read_at_s
        return read_at_s is None or self._clock() - read_at_s >= self._poll_seconds

    async def _recover(self) -> None:
        parts = self._parts
        await parts.learning.rebuild()
        await parts.recovery.run()
        for slot in parts.slots:
            parts.supervision.take_over(slot)
            if slot.entry.launcher_pid is not None:
                parts.exits.watch(slot.entry.launcher_pid)
        self._recovered = True
