"""Asks the server for a pool's queue: every scheduled run, not only those a limit lets through."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterId,
    WorkQueueFilter,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkPool, WorkQueue
from prefect.client.schemas.sorting import FlowRunSort

from xonar_prefect.worker.limits import PAGE, pool_filter, queue_filter

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: at a scheduled time, after some runs of that very time.

    Runs leave the queue while it is read, so a page is found by time and not by its number.
    """

    since: datetime | None = None
    skip: int = 0

    def after(self, page: Sequence[FlowRun]) -> Cursor | None:
        """Return where the next page begins; None when this was the last."""
        if len(page) < PAGE:
            return None
        last = page[-1].next_scheduled_start_time
        alike = sum(run.next_scheduled_start_time == last for run in page)
        return Cursor(last, alike + self.skip if last == self.since else alike)


class QueuePages:
    """Reads the queue of one pool.

    Args:
        client: Of the Prefect server.
        pool: The pool.
        queues: The queues of it that are served; empty for all.
    """

    def __init__(self, client: PrefectClient, pool: str, queues: frozenset[str]) -> None:
        self.client = client
        self._pool = pool
        self._queues = queues
        self._missed: frozenset[str] = frozenset()

    async def pool(self) -> WorkPool:
        """Read the pool.

        Raises:
            ObjectNotFound: It was deleted.
        """
        return await self.client.read_work_pool(self._pool)

    async def queues(self) -> dict[str, WorkQueue]:
        """Read those queues that are served, by name."""
        queues = await self.client.read_work_queues(work_pool_name=self._pool)
        by_name = {queue.name: queue for queue in queues}
        if not self._queues:
            return by_name
        missed = self._queues - by_name.keys()
        if missed - self._missed:  # misspelt, or still to be made
            _logger.warning(
                "Pool %r has no queue %s, only %s; nothing is taken from there until it is made.",
                self._pool,
                " and ".join(map(repr, sorted(missed))),
                ", ".join(map(repr, sorted(by_name))),
            )
        self._missed = missed
        return {name: queue for name, queue in by_name.items() if name in self._queues}

    async def page(self, cursor: Cursor, until: datetime) -> list[FlowRun]:
        """Read the runs that are due, in the order of their scheduled times.

        Args:
            cursor: Where to begin.
            until: Runs that are scheduled later are not due.
        """
        return await self.client.read_flow_runs(
            flow_run_filter=_due(until, since=cursor.since),
            work_pool_filter=pool_filter(self._pool),
            work_queue_filter=self._served(),
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            limit=PAGE,
            offset=cursor.skip,
        )

    async def of_runs(self, run_ids: Sequence[UUID], until: datetime) -> list[FlowRun]:
        """Read those of at most a page of runs that are due."""
        due = _due(until)
        due.id = FlowRunFilterId(any_=list(run_ids))
        return await self.client.read_flow_runs(
            flow_run_filter=due,
            work_pool_filter=pool_filter(self._pool),
            work_queue_filter=self._served(),
            limit=PAGE,
        )

    async def count(self, until: datetime) -> int:
        """Return how many runs are due."""
        return await self.client.count_flow_runs(
            flow_run_filter=_due(until),
            work_pool_filter=pool_filter(self._pool),
            work_queue_filter=self._served(),
        )

    async def parents(self, task_run_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Return the flow runs of at most a page of task runs: who has started a child run."""
        task_runs = await self.client.read_task_runs(
            task_run_filter=TaskRunFilter(id=TaskRunFilterId(any_=list(task_run_ids))), limit=PAGE
        )
        return {run.id: str(run.flow_run_id) for run in task_runs if run.flow_run_id is not None}

    def _served(self) -> WorkQueueFilter | None:
        return queue_filter(self._queues) if self._queues else None


def _due(until: datetime, *, since: datetime | None = None) -> FlowRunFilter:
    return FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=until, after_=since),
    )
