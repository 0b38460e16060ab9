"""Turns pages of flow runs into rows of the picture: trainings, and runs that can never start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, WorkQueue
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.decisions import ReasonCode, Refuse
from xonar_prefect.core.models import Training
from xonar_prefect.errors import JobVariableError
from xonar_prefect.worker.concluding import waits_in_its_process
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.queue_pages import QueuePages

_DELETED = "Its deployment was deleted, so it cannot be started; submit it from another one."


@dataclass(frozen=True, slots=True)
class Row:
    """A scheduled run: a training, a refusal, or (neither) one that waits in its own process."""

    flow_run: FlowRun
    training: Training | None = None
    refusal: Refuse | None = None


class QueueRows:
    """Makes rows; everything that many runs have in common is read once for all of them."""

    def __init__(self, pages: QueuePages, held_runs: HeldRuns, deployments: Deployments) -> None:
        self._pages = pages
        self._held_runs = held_runs
        self._deployments = deployments
        self._parents: dict[UUID, str | None] = {}

    async def of(
        self,
        flow_runs: Sequence[FlowRun],
        template: Mapping[str, Any],
        queues: Mapping[str, WorkQueue],
    ) -> dict[str, Row]:
        """Return the rows of at most a page of runs by run id; without those just deleted."""
        await self._deployments.renew(run.deployment_id for run in flow_runs if run.deployment_id)
        await self._find_parents(flow_runs)
        rows: dict[str, Row] = {}
        for flow_run in flow_runs:
            try:
                rows[str(flow_run.id)] = await self._row(flow_run, template, queues)
            except ObjectNotFound:
                continue  # its flow was deleted, and it goes the same way
        return rows

    async def _row(
        self, flow_run: FlowRun, template: Mapping[str, Any], queues: Mapping[str, WorkQueue]
    ) -> Row:
        if waits_in_its_process(flow_run):
            return Row(flow_run)
        if self._deployments.is_deleted(flow_run.deployment_id):
            return Row(
                flow_run, refusal=_refusal(flow_run, ReasonCode.DEPLOYMENT_DELETED, _DELETED)
            )
        deployment = self._deployments.get(flow_run.deployment_id)
        parent = self._parents.get(flow_run.parent_task_run_id or flow_run.id)
        try:
            training = await self._held_runs.training(
                flow_run, deployment, template, queues, parent=parent
            )
        except JobVariableError as error:
            refusal = _refusal(flow_run, ReasonCode.WRONG_JOB_VARIABLE, str(error))
            return Row(flow_run, refusal=refusal)
        return Row(flow_run, training)

    async def _find_parents(self, flow_runs: Sequence[FlowRun]) -> None:
        unknown = {run.parent_task_run_id for run in flow_runs if run.parent_task_run_id}
        unknown -= self._parents.keys()
        if unknown:
            found = await self._pages.parents(unknown)
            self._parents.update({task_run: found.get(task_run) for task_run in unknown})


def _refusal(flow_run: FlowRun, code: ReasonCode, sentence: str) -> Refuse:
    training = Training(run_id=str(flow_run.id), name=flow_run.name, submitted_at_s=0.0)
    return Refuse(training=training, code=code, reason=sentence)
