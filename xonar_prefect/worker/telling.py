"""Tells runs what was decided about them, beside the turns and out of every launch's way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus

import httpx
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    Refuse,
    Release,
)
from xonar_prefect.worker.explaining import Explanations
from xonar_prefect.worker.queue_picture import QueuePicture, QueueReading
from xonar_prefect.worker.slots import Slots

_logger = logging.getLogger(__name__)


class Telling:
    """What is still to be told: every release, and the latest holds and refusals.

    Args:
        explanations: Shows a decision.
        slots: What runs.
        picture: The queue; what was refused is dropped from it.
        visible_held: Held runs, in queue order, that are told at most.
        step_aside: Waits while there is something more urgent for the server to do.
    """

    def __init__(
        self,
        explanations: Explanations,
        slots: Slots,
        picture: QueuePicture,
        *,
        visible_held: int,
        step_aside: Callable[[], Awaitable[None]],
    ) -> None:
        self._explanations = explanations
        self._slots = slots
        self._picture = picture
        self._visible_held = visible_held
        self._step_aside = step_aside
        self._releases: deque[tuple[Release, FlowRun]] = deque()
        self._refusals: tuple[Refuse, ...] = ()
        self._holds: tuple[Hold, ...] = ()
        self._queue: QueueReading | None = None

    def decided(
        self, decisions: Sequence[Decision], releases: Sequence[Release], queue: QueueReading
    ) -> None:
        """Note what was decided.

        Args:
            decisions: All decisions, in queue order.
            releases: Those of them that were carried out.
            queue: What they rest on.
        """
        runs = queue.flow_runs
        self._releases += [(each, runs[each.training.run_id]) for each in releases]
        refused = [each for each in decisions if isinstance(each, Refuse)]
        self._refusals = (*queue.refusals.values(), *refused)
        holds = [each for each in decisions if isinstance(each, Hold)]
        self._holds = tuple(holds[: self._visible_held])
        self._queue = queue
        self._explanations.keep_only(frozenset(each.training.run_id for each in holds))

    def withdraw(self, run_id: str) -> None:
        """Do not tell of a release that came to nothing: somebody else may have the run."""
        self._releases = deque(each for each in self._releases if each[0].training.run_id != run_id)

    async def tell(self) -> None:
        """Tell what was not told yet.

        Raises:
            httpx.HTTPError: The server does not answer; the rest is told the next time.
        """
        while self._releases:
            first = self._releases[0]
            await self._show(partial(self._release, *first))
            if self._releases and self._releases[0] is first:
                self._releases.popleft()
        queue = self._queue
        if queue is None:
            return
        refusals, self._refusals = self._refusals, ()
        for refuse in refusals:
            run_id = refuse.training.run_id
            flow_run = queue.flow_runs[run_id]
            await self._show(partial(self._explanations.refuse, refuse, flow_run))
            self._picture.drop(run_id)
        for hold in self._holds:
            if self._queue is not queue:
                return  # there are newer decisions
            if hold.training.run_id not in self._slots:
                await self._hold(hold, queue)

    async def _hold(self, hold: Hold, queue: QueueReading) -> None:
        flow_run = queue.flow_runs[hold.training.run_id]
        markable = queue.may_mark(hold)
        if self._explanations.has_news(hold, markable=markable):
            await self._show(partial(self._explanations.hold, hold, flow_run, markable=markable))

    async def _release(self, release: Release, flow_run: FlowRun) -> None:
        if not any(each is release for each, _ in self._releases):
            return  # withdrawn while launches went first
        slot = self._slots.get(release.training.run_id)
        partners = () if slot is None else self._slots.partners(slot)
        names = tuple(partner.entry.name for partner in partners)
        await self._explanations.release(release, flow_run, names)
        for partner in partners:
            await self._slots.advance(partner)  # what is predicted for it now
            beside = self._slots.partners(partner)
            await self._explanations.joined(
                partner.entry.run_id,
                [other.entry.name for other in beside],
                partner.meter.predicted(other.entry.run_id for other in beside),
            )

    async def _show(self, show: Callable[[], Awaitable[object]]) -> None:
        """Let launches go first; what the server refuses of one run stops nobody else's."""
        await self._step_aside()
        try:
            await show()
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            _logger.warning("A decision could not be shown: %s", error)
