"""Reads what Prefect limits: pauses and concurrency limits of pool, queues and deployments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
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
from prefect.client.schemas.objects import StateType, WorkPool, WorkQueue
from prefect.client.schemas.responses import DeploymentResponse

from xonar_prefect.core.models import Limits

_OCCUPYING = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def deployment_limit(deployment: DeploymentResponse) -> int | None:
    """Return how many runs of a deployment may run at once; None for no limit."""
    limit = deployment.global_concurrency_limit
    return limit.limit if limit is not None and limit.active else None


def pool_filter(pool: str) -> WorkPoolFilter:
    """Match runs of a pool."""
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


def queue_filter(names: Iterable[str]) -> WorkQueueFilter:
    """Match runs of some queues."""
    return WorkQueueFilter(name=WorkQueueFilterName(any_=sorted(names)))


class PrefectLimits:
    """Turns Prefect's limits into the rules of a decision."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client

    async def read(
        self,
        limits: Limits,
        pool: WorkPool,
        queues: Iterable[WorkQueue],
        deployments: Iterable[DeploymentResponse],
    ) -> Limits:
        """Return the limits with Prefect's own filled in.

        Args:
            limits: The rules that come from settings.
            pool: The pool.
            queues: Those of its queues that are served.
            deployments: Deployments whose runs are held; those without a limit cost nothing.
        """
        queues = list(queues)
        free_slots = None
        if pool.concurrency_limit is not None:
            free_slots = max(0, pool.concurrency_limit - await self._in_pool(pool.name))
        by_queue = {
            queue.name: max(0, queue.concurrency_limit - await self._in_pool(pool.name, queue.name))
            for queue in queues
            if queue.concurrency_limit is not None
        }
        by_deployment = {
            str(deployment.id): max(0, limit - await self._of_deployment(deployment.id))
            for deployment in deployments
            if (limit := deployment_limit(deployment)) is not None
        }
        return replace(
            limits,
            free_slots=free_slots,
            free_slots_by_queue=by_queue,
            free_slots_by_deployment=by_deployment,
            pool_paused=bool(pool.is_paused),
            paused_queues=frozenset(queue.name for queue in queues if queue.is_paused),
        )

    async def _in_pool(self, pool: str, queue: str | None = None) -> int:
        return await self._client.count_flow_runs(
            flow_run_filter=_occupying(),
            work_pool_filter=pool_filter(pool),
            work_queue_filter=queue_filter([queue]) if queue else None,
        )

    async def _of_deployment(self, deployment: UUID) -> int:
        # A deployment's limit counts its runs in every pool.
        return await self._client.count_flow_runs(
            flow_run_filter=_occupying(),
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
        )


def _occupying() -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OCCUPYING)))
