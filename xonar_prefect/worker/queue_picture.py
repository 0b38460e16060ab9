"""What a worker knows of its pool's queue: kept up to date beside the turns, bit by bit.

To read five thousand runs takes a server many seconds, so no decision waits for it. What is new
is read often, and the whole queue only at first, seldom, and when the server counts another
number of runs than are known here. A decision uses the picture as it is: what was cancelled,
deleted or claimed by somebody else in the meantime is found out by the claim, and dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import anyio
import anyio.lowlevel
from prefect.client.schemas.objects import FlowRun, WorkQueue
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.decisions import Hold, ReasonCode, Refuse
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.limits import PAGE, Occupant, PrefectLimits, cancels_new, read_limits
from xonar_prefect.worker.queue_pages import Cursor, QueuePages
from xonar_prefect.worker.queue_rows import QueueRows, Row

# Clocks differ, and a run is written a moment after it was scheduled.
_OVERLAP = timedelta(seconds=10)
# Reading a long queue rests this many times as long as it keeps the server busy.
_REST = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """The queue as it is known at the moment of a decision.

    Attributes:
        trainings: The held trainings by run id.
        flow_runs: Their flow runs by run id.
        refusals: Runs that can never start, and why.
        limits: The rules of the decision, Prefect's limits and pauses filled in.
        limited: Deployments with a concurrency limit, by id, and whether they cancel what comes
            while it is reached.
    """

    trainings: Mapping[str, Training]
    flow_runs: Mapping[str, FlowRun]
    refusals: Mapping[str, Refuse]
    limits: Limits
    limited: Mapping[str, bool]

    def may_mark(self, hold: Hold) -> bool:
        """Tell whether a run may be claimed to be marked: that takes a slot of its deployment.

        Where the deployment's limit is reached and new runs are to be cancelled, it is the claim
        that lets the server do so.
        """
        cancels = self.limited.get(hold.training.deployment or "")
        return cancels is None or (cancels and hold.code is ReasonCode.DEPLOYMENT_LIMIT)


class QueuePicture:
    """The picture of one pool's queue.

    Args:
        pages: Reads the queue from the server.
        held_runs: Turns runs into trainings.
        deployments: Their deployments.
        ours: Ids of the runs that this worker has a slot for.
        whole_seconds: How often the whole queue is read at the latest.
        step_aside: Waits while there is something more urgent for the server to do.
        clock: The time in seconds.
    """

    def __init__(
        self,
        pages: QueuePages,
        held_runs: HeldRuns,
        deployments: Deployments,
        *,
        ours: Callable[[], Iterable[str]],
        whole_seconds: float,
        step_aside: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._pages = pages
        self._held_runs = held_runs
        self._deployments = deployments
        self._making = QueueRows(pages, held_runs, deployments)
        self._ours = ours
        self._whole_seconds = whole_seconds
        self._step_aside = step_aside
        self._clock = clock
        self._rows: dict[str, Row] = {}
        self._template: Mapping[str, Any] | None = None
        self._queues: Mapping[str, WorkQueue] = {}
        self._limits = PrefectLimits()
        self._known_as_ours: set[str] = set()
        self._unsure: set[str] = set()
        # Answers to older requests do not bring back what was dropped since.
        self._moment = 0
        self._dropped_at: dict[str, int] = {}
        self._read_until: datetime | None = None
        self._is_trusted = False
        self._whole_ended_at_s = 0.0
        self._whole_took_s = 0.0
        self._times_miscounted = 0

    @property
    def is_trusted(self) -> bool:
        """Whether the queue was read, and nothing was heard since that makes it doubtful."""
        return self._is_trusted

    @property
    def has_deployment_limits(self) -> bool:
        """Whether a deployment with held runs has a concurrency limit."""
        return bool(self._limits.by_deployment)

    def reading(
        self, limits: Limits, *, running: Iterable[Occupant], unfinished: Iterable[Occupant]
    ) -> QueueReading:
        """Return the queue as it is known now.

        Args:
            limits: The rules that come from settings.
            running: Trainings of this worker that hold a slot now.
            unfinished: Those, and the ones whose end the server has not been told yet.
        """
        rows = self._rows.items()
        return QueueReading(
            trainings={id_: row.training for id_, row in rows if row.training is not None},
            flow_runs={id_: row.flow_run for id_, row in rows},
            refusals={id_: row.refusal for id_, row in rows if row.refusal is not None},
            limits=self._limits.rules(
                limits, running=running, unfinished=unfinished, known_as_ours=self._known_as_ours
            ),
            limited={
                id_: (known := self._deployments.get(UUID(id_))) is not None and cancels_new(known)
                for id_ in self._limits.by_deployment
            },
        )

    async def renew(self) -> None:
        """Bring the picture up to date.

        Raises:
            httpx.HTTPError: The server could not be asked; what is known stays.
        """
        begin = datetime.now(timezone.utc)
        try:
            pool, queues = await self._pages.pool(), await self._pages.queues()
        except ObjectNotFound:
            self._pool_is_gone()
            return
        has_changed = self._template is not None and (
            pool.base_job_template != self._template
            or _priorities(queues) != _priorities(self._queues)
        )
        self._template, self._queues = pool.base_job_template, queues
        has_changed |= await self._held_runs.learn()
        is_whole = self._is_whole_due()
        await (self._read_whole(begin) if is_whole else self._read_new(begin))
        held_by = {id_ for row in self._rows.values() if (id_ := row.flow_run.deployment_id)}
        self._deployments.keep_only(held_by)
        await self._deployments.renew(held_by)
        if not is_whole and (self._deployments.have_changed() or has_changed):
            await self.convert_again()
        ended = self._known_as_ours - set(self._ours())
        self._known_as_ours.update(self._ours())
        known = [each for id_ in held_by if (each := self._deployments.get(id_))]
        self._limits = await read_limits(self._pages.client, pool, queues.values(), known)
        self._known_as_ours -= ended  # if they occupy a slot now, they are somebody else's
        self._is_trusted = True

    async def convert_again(self) -> None:
        """Turn all known runs into trainings again: more, or other things, are known of them."""
        await self._held_runs.learn()
        for run_ids in _chunks(list(self._rows)):
            known = [self._rows[id_].flow_run for id_ in run_ids if id_ in self._rows]
            await self._take_in(known, self._moment)
            await anyio.lowlevel.checkpoint()  # a process may have ended in the meantime

    def released(self, run_ids: Sequence[str]) -> None:
        """Note that these runs are this worker's now."""
        self._known_as_ours.update(run_ids)
        self.drop(*run_ids)

    def drop(self, *run_ids: str) -> None:
        """Forget runs; whoever is still held comes back with the next reading that shows it."""
        self._moment += 1
        for run_id in run_ids:
            self._rows.pop(run_id, None)
            self._dropped_at[run_id] = self._moment

    def look_again(self, run_id: str) -> None:
        """Have a run read again: it could not be claimed, or it was put back."""
        self._unsure.add(run_id)

    def distrust(self) -> None:
        """Have nothing released until it is renewed: the pool was paused, or the server is away."""
        self._is_trusted = False

    def _is_whole_due(self) -> bool:
        if self._read_until is None or len(self._rows) < PAGE:
            return True  # it is one page
        age_s = self._clock() - self._whole_ended_at_s
        # Twice in a row, as what is being claimed at the moment may count here or there.
        is_wrong = self._times_miscounted > 1 and age_s > _REST * self._whole_took_s
        return is_wrong or age_s >= self._whole_seconds

    async def _read_whole(self, begin: datetime) -> None:
        began_at_s, moment, before = self._clock(), self._moment, set(self._rows)
        seen = await self._read(Cursor(), begin, unhurried=self._read_until is not None)
        for run_id in before - seen:
            self._rows.pop(run_id, None)
        self._dropped_at = {id_: at for id_, at in self._dropped_at.items() if at > moment}
        self._unsure.clear()
        self._times_miscounted = 0
        self._whole_ended_at_s = self._clock()
        self._whole_took_s = self._whole_ended_at_s - began_at_s
        self._read_until = begin

    async def _read_new(self, begin: datetime) -> None:
        if self._read_until is not None:
            await self._read(Cursor(self._read_until - _OVERLAP), begin)
        unsure, self._unsure = self._unsure, set()
        for run_ids in _chunks(sorted(unsure)):
            moment = self._moment
            held = await self._pages.of_runs([UUID(run_id) for run_id in run_ids], begin)
            self.drop(*(set(run_ids) - {str(run.id) for run in held}))
            await self._take_in(held, moment)
        self._read_until = begin
        is_wrong = await self._pages.count(begin) != len(self._rows)
        self._times_miscounted = self._times_miscounted + 1 if is_wrong else 0

    async def _read(
        self, cursor: Cursor | None, until: datetime, *, unhurried: bool = False
    ) -> set[str]:
        """Take in all pages from the cursor on; return the ids that were seen."""
        seen: set[str] = set()
        while cursor is not None:
            await self._step_aside()
            moment, asked_at_s = self._moment, self._clock()
            page = await self._pages.page(cursor, until)
            took_s = self._clock() - asked_at_s
            await self._take_in(page, moment)
            seen.update(str(run.id) for run in page)
            cursor = cursor.after(page)
            if cursor is not None and unhurried:
                await anyio.sleep(_REST * took_s)
        return seen

    async def _take_in(self, flow_runs: Sequence[FlowRun], moment: int) -> None:
        rows = await self._making.of(flow_runs, self._template or {}, self._queues)
        ours = set(self._ours())
        for run_id, row in rows.items():
            if run_id not in ours and self._dropped_at.get(run_id, 0) <= moment:
                self._rows[run_id] = row

    def _pool_is_gone(self) -> None:
        if self._template is not None:
            _logger.warning(
                "The work pool was deleted, and its queue with it: nothing is held any more. What "
                "runs goes on; create the pool again with `xonar pool create`."
            )
        self._rows.clear()
        self._template = None
        self._limits = PrefectLimits()
        self._is_trusted = True  # so that it is decided, and told, that nothing is held


def _priorities(queues: Mapping[str, WorkQueue]) -> dict[str, int | None]:
    return {name: queue.priority for name, queue in queues.items()}


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(ids), PAGE):
        yield ids[begin : begin + PAGE]
