"""What Prefect limits: pauses and concurrency limits of pool, queues and deployments.

A limit's free slots are what others leave of it less what this worker has itself at the moment of
a decision. So they hold between two readings too, and a slot that became free here is free at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    FlowRun,
    StateType,
    WorkPool,
    WorkQueue,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort

from xonar_prefect.core.models import Limits

PAGE = 200  # the most rows that the server returns at once
DEFAULT_QUEUE = "default"

_OCCUPYING = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def deployment_limit(deployment: DeploymentResponse) -> int | None:
    """Return how many runs of a deployment may run at once; None for no limit."""
    limit = deployment.global_concurrency_limit
    return limit.limit if limit is not None and limit.active else None


def cancels_new(deployment: DeploymentResponse) -> bool:
    """Tell whether a run that comes while the deployment's limit is reached is to be cancelled."""
    options = deployment.concurrency_options
    return options is not None and options.collision_strategy == ConcurrencyLimitStrategy.CANCEL_NEW


def pool_filter(pool: str) -> WorkPoolFilter:
    """Match runs of a pool."""
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


def queue_filter(names: Iterable[str]) -> WorkQueueFilter:
    """Match runs of some queues."""
    return WorkQueueFilter(name=WorkQueueFilterName(any_=sorted(names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A run that counts against limits, from its claim to its final state."""

    run_id: str
    queue: str
    deployment: str | None

    @classmethod
    def of(cls, flow_run: FlowRun) -> Occupant:
        """Describe a run as the server showed it."""
        deployment = flow_run.deployment_id
        return cls(
            run_id=str(flow_run.id),
            queue=flow_run.work_queue_name or DEFAULT_QUEUE,
            deployment=None if deployment is None else str(deployment),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectLimits:
    """Prefect's pauses and limits, and who else uses them, as they were read.

    Attributes:
        pool: Limit of the pool; None for none.
        by_queue: Limits of those queues that have one.
        by_deployment: Limits of those deployments that have one.
        pool_paused: Nothing may be released.
        paused_queues: Queues that release nothing.
        in_pool: Runs of the pool that occupy a slot, ours among them.
        of_deployments: Runs of the limited deployments that do, in whatever pool.
    """

    pool: int | None = None
    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_deployment: Mapping[str, int] = field(default_factory=dict)
    pool_paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    in_pool: tuple[Occupant, ...] = ()
    of_deployments: tuple[Occupant, ...] = ()

    def rules(
        self,
        limits: Limits,
        *,
        running: Iterable[Occupant],
        unfinished: Iterable[Occupant],
        known_as_ours: Container[str],
    ) -> Limits:
        """Return the rules of a decision with Prefect's own filled in.

        Args:
            limits: The rules that come from settings.
            running: Trainings of this worker that hold a slot now.
            unfinished: Those, and the ones whose end the server has not been told yet: it counts
                them against their deployment, and would refuse or cancel the next.
            known_as_ours: Ids of all runs that this worker has had since the reading: whether they
                still count is what `running` and `unfinished` say.
        """
        running = tuple(running)
        here = [each for each in self.in_pool if each.run_id not in known_as_ours]
        there = [each for each in self.of_deployments if each.run_id not in known_as_ours]
        queues = Counter(each.queue for each in (*here, *running))
        deployments = Counter(each.deployment for each in (*there, *unfinished))
        in_use = len(here) + len(running)
        return replace(
            limits,
            free_slots=None if self.pool is None else max(0, self.pool - in_use),
            free_slots_by_queue={
                name: max(0, limit - queues[name]) for name, limit in self.by_queue.items()
            },
            free_slots_by_deployment={
                name: max(0, limit - deployments[name])
                for name, limit in self.by_deployment.items()
            },
            pool_paused=self.pool_paused,
            paused_queues=self.paused_queues,
        )


async def read_limits(
    client: PrefectClient,
    pool: WorkPool,
    queues: Iterable[WorkQueue],
    deployments: Iterable[DeploymentResponse],
) -> PrefectLimits:
    """Read what Prefect limits now.

    Args:
        client: Of the server.
        pool: The pool.
        queues: Those of its queues that are served.
        deployments: Deployments whose runs are held; those without a limit cost nothing.
    """
    queues = list(queues)
    by_queue = {
        queue.name: queue.concurrency_limit
        for queue in queues
        if queue.concurrency_limit is not None
    }
    by_deployment = {
        deployment.id: limit
        for deployment in deployments
        if (limit := deployment_limit(deployment)) is not None
    }
    is_limited = pool.concurrency_limit is not None or by_queue
    of_limited = DeploymentFilter(id=DeploymentFilterId(any_=list(by_deployment)))
    return PrefectLimits(
        pool=pool.concurrency_limit,
        by_queue=by_queue,
        by_deployment={str(id_): limit for id_, limit in by_deployment.items()},
        pool_paused=bool(pool.is_paused),
        paused_queues=frozenset(queue.name for queue in queues if queue.is_paused),
        in_pool=await _occupants(client, pool=pool_filter(pool.name)) if is_limited else (),
        # A deployment's limit counts its runs in every pool.
        of_deployments=await _occupants(client, deployments=of_limited) if by_deployment else (),
    )


async def is_paused(client: PrefectClient, pool: str, queue_id: UUID | None) -> bool:
    """Tell whether a pool, or one of its queues, is paused at this moment.

    Raises:
        ObjectNotFound: There is no such pool or queue any more.
    """
    if queue_id is None:
        return bool((await client.read_work_pool(pool)).is_paused)
    both = await asyncio.gather(client.read_work_pool(pool), client.read_work_queue(queue_id))
    return any(each.is_paused for each in both)


async def _occupants(
    client: PrefectClient,
    *,
    pool: WorkPoolFilter | None = None,
    deployments: DeploymentFilter | None = None,
) -> tuple[Occupant, ...]:
    occupying = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OCCUPYING))
    )
    found: dict[UUID, Occupant] = {}
    while True:
        page = await client.read_flow_runs(
            flow_run_filter=occupying,
            work_pool_filter=pool,
            deployment_filter=deployments,
            sort=FlowRunSort.ID_DESC,
            limit=PAGE,
            offset=len(found),
        )
        known = len(found)
        found.update((run.id, Occupant.of(run)) for run in page)
        if len(page) < PAGE or len(found) == known:
            return tuple(found.values())
