"""What a worker does when: what the next launch waits for comes first, all else beside it.

A *turn* looks at the trainings and decides; it is taken at every exit and needs no answer of the
server before it hands a training over. Three more tasks run beside it, each at its own pace: the
queue is read, ended trainings are concluded, and runs are told what was decided about them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import anyio
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.worker.recurring import Recurring
from xonar_prefect.worker.wiring import Parts

_Work: TypeAlias = Callable[[], Awaitable[object]]


class Turns:
    """Takes one turn after the other, and has the other tasks done beside.

    Args:
        parts: The worker's parts.
        clock: The time.
        poll_seconds: How often the queue is read.
        watch_seconds: How often running trainings are looked at.
        is_synced: Whether the server knows this worker; before that there is nothing to do.
        spread: A number from 0 to 1, another one each time, by which pauses after failures differ.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        clock: Callable[[], float],
        poll_seconds: float,
        watch_seconds: float,
        is_synced: Callable[[], bool],
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._is_synced = is_synced
        self._recovering = anyio.Lock()
        self._recovered = False
        self._releases = True
        self._to_decide = False
        self._queue_read_at_s: float | None = None
        self._released: Sequence[FlowRun] = ()

        def recurring(what: str, work: _Work, every_seconds: float) -> Recurring:
            return Recurring(
                what, work, every_seconds=every_seconds, most_seconds=poll_seconds, spread=spread
            )

        self._turn = recurring("A turn of the worker", self._look_and_decide, watch_seconds)
        self._reading = recurring("Reading the queue", self._read_queue, poll_seconds)
        self._aftercare = recurring("Concluding", self._conclude, watch_seconds)
        self._telling = recurring("Telling of decisions", self._tell, watch_seconds)

    def wake_up(self) -> None:
        """Have a turn taken at once: a process has ended, or a slot is free."""
        self._turn.wake_up()

    def decide_again(self) -> None:
        """Have it decided anew, and the queue read: what was released could not be started."""
        self._to_decide = True
        self._turn.wake_up()
        self._reading.wake_up()

    def release_nothing_more(self) -> None:
        """Look after what runs, and start nothing any more."""
        self._releases = False

    async def serve(self) -> None:
        """Do all of it until cancelled."""
        async with anyio.create_task_group() as tasks:
            for each in (self._turn, self._reading, self._aftercare, self._telling):
                tasks.start_soon(each.serve)

    async def take(self) -> Sequence[FlowRun]:
        """Read the queue if that is due, and take a turn; never raise.

        Returns:
            The runs that were released in it.
        """
        read_at_s = self._queue_read_at_s
        if read_at_s is None or self._clock() - read_at_s >= self._poll_seconds:
            await self._reading.do_once()
        self._released = ()
        await self._turn.do_once()
        return self._released

    async def _look_and_decide(self) -> None:
        parts = self._parts
        if not self._is_synced():
            return
        await self._recover()
        changed = await parts.supervision.look(parts.devices.look)
        changed = await parts.health.look() or changed
        self._to_decide |= changed
        if self._to_decide and self._releases and parts.picture.is_trusted:
            await self._decide()
        if changed:
            self._aftercare.wake_up()

    async def _decide(self) -> None:
        self._to_decide = False
        try:
            self._released = await self._parts.dispatch.decide()
        except BaseException:
            self._to_decide = True
            raise
        self._telling.wake_up()

    async def _read_queue(self) -> None:
        parts = self._parts
        if not self._is_synced():
            return
        await self._recover()
        parts.locks.keep()
        self._queue_read_at_s = self._clock()
        if self._releases:
            await parts.picture.renew()
            self._to_decide = True
            self._turn.wake_up()
        await parts.slots.settle()
        await parts.claims.settle()
        await parts.recovery.put_back_orphans()

    async def _conclude(self) -> None:
        parts = self._parts
        await parts.in_flight.step_aside()
        if await parts.supervision.attend() and parts.picture.has_deployment_limits:
            # Only now the server counts one less of its deployment.
            self._to_decide = True

    async def _tell(self) -> None:
        await self._parts.telling.tell()

    async def _recover(self) -> None:
        parts = self._parts
        async with self._recovering:
            if self._recovered:
                return
            await parts.recovery.run()
            for slot in parts.slots:
                # At once: what it prints from now on is shown here.
                parts.supervision.take_over(slot)
            for slot in parts.slots:
                # Before the rebuilding, which does not know who was measured beside a partner.
                await parts.learning.read_profiles(slot, joint=slot.measured_beside_partner)
            await parts.learning.rebuild()
            for slot in parts.slots:
                await parts.dispatch.renew_profiles(slot)
                if slot.entry.launcher_pid is not None:
                    parts.exits.watch(slot.entry.launcher_pid)
            self._recovered = True
