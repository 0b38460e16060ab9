"""Reads a pool's whole queue: every scheduled run, not only those that a limit lets through."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkQueue
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Limits, Profile, Training
from xonar_prefect.errors import JobVariableError, UnknownParameterError
from xonar_prefect.store import Store
from xonar_prefect.worker.concluding import waits_in_its_process
from xonar_prefect.worker.configuration import checked_variables, takes_all_memory
from xonar_prefect.worker.limits import PrefectLimits, deployment_limit, pool_filter, queue_filter

_PAGE = 200  # the server's cap
_DEPLOYMENT_FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """The queue at one moment.

    Attributes:
        trainings: The held trainings by run id.
        flow_runs: Their flow runs by run id.
        refusals: Runs that can never start, with the sentence that says why.
        limits: The rules of the decision, Prefect's limits and pauses filled in.
        unmarkable: Runs that must not be claimed to be marked: their deployment has a
            concurrency limit, and the claim would take its slot.
    """

    trainings: Mapping[str, Training]
    flow_runs: Mapping[str, FlowRun]
    refusals: Mapping[str, str]
    limits: Limits
    unmarkable: frozenset[str]

    def without(self, run_ids: frozenset[str]) -> QueueReading:
        """Return this reading without some runs."""
        left = {
            run_id: training for run_id, training in self.trainings.items() if run_id not in run_ids
        }
        return replace(self, trainings=left)


@dataclass(slots=True)
class _Cache:
    deployments: dict[UUID, tuple[float, DeploymentResponse]] = field(default_factory=dict)
    flow_names: dict[UUID, str] = field(default_factory=dict)
    # What the store says, for the length of one reading: thousands of runs are of few kinds.
    recipes: dict[tuple[str, str | None], tuple[Recipe, ...]] = field(default_factory=dict)
    profiles: dict[str, Mapping[str, Profile]] = field(default_factory=dict)

    def ask_the_store_again(self) -> None:
        self.recipes.clear()
        self.profiles.clear()


class HeldRuns:
    """Reads the queue of one pool and turns its runs into trainings."""

    def __init__(
        self, client: PrefectClient, store: Store, pool: str, queues: frozenset[str]
    ) -> None:
        self._client = client
        self._store = store
        self._pool = pool
        self._queues = queues
        self._limits = PrefectLimits(client)
        self._cache = _Cache()

    async def read(self, limits: Limits) -> QueueReading:
        """Read the whole queue, with pauses, priorities and limits.

        Args:
            limits: The rules that come from settings.
        """
        self._cache.ask_the_store_again()
        pool = await self._client.read_work_pool(self._pool)
        queues = {queue.name: queue for queue in await self._read_queues()}
        trainings: dict[str, Training] = {}
        flow_runs: dict[str, FlowRun] = {}
        refusals: dict[str, str] = {}
        deployments: dict[str, DeploymentResponse] = {}
        for flow_run in await self._scheduled_runs():
            run_id = str(flow_run.id)
            flow_runs[run_id] = flow_run
            try:
                deployment = await self._deployment(flow_run)
                training = await self.training(flow_run, deployment, pool.base_job_template, queues)
            except JobVariableError as error:
                refusals[run_id] = str(error)
                continue
            except ObjectNotFound:
                del flow_runs[run_id]  # deleted while we looked
                continue
            trainings[run_id] = training
            if deployment is not None and deployment_limit(deployment) is not None:
                deployments[str(deployment.id)] = deployment
        return QueueReading(
            trainings=trainings,
            flow_runs=flow_runs,
            refusals=refusals,
            limits=await self._limits.read(limits, pool, queues.values(), deployments.values()),
            unmarkable=frozenset(
                run_id for run_id, run in trainings.items() if run.deployment in deployments
            ),
        )

    async def training(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None,
        template: Mapping[str, Any],
        queues: Mapping[str, WorkQueue],
    ) -> Training:
        """Turn one flow run into a training, with the profiles that are known of its kind.

        Raises:
            JobVariableError: A job variable is misspelt or wrong.
        """
        values = dict(deployment.job_variables or {}) if deployment else {}
        values.update(flow_run.job_variables or {})
        variables = checked_variables(template, values)
        queue = queues.get(flow_run.work_queue_name or "default")
        submitted = flow_run.expected_start_time or flow_run.created
        training = Training(
            run_id=str(flow_run.id),
            name=flow_run.name,
            submitted_at_s=submitted.timestamp() if submitted else 0.0,
            gpus=variables.gpus,
            priority=queue.priority if queue and queue.priority else 1,
            queue=flow_run.work_queue_name or "default",
            deployment=str(flow_run.deployment_id) if flow_run.deployment_id else None,
            memory_request_mib=variables.memory_request_mib,
            exclusive=variables.exclusive,
            memory_elastic=variables.memory_elastic or takes_all_memory(_environment(values)),
            host_memory_mib=variables.host_memory_mib,
            cpu_threads=variables.cpu_threads,
            shared_memory_mib=variables.shared_memory_mib,
        )
        return await self._with_profiles(training, flow_run, deployment)

    async def training_of(self, flow_run: FlowRun) -> Training:
        """Turn a run of this pool, held or not, into a training.

        Raises:
            JobVariableError: A job variable is misspelt or wrong.
            ObjectNotFound: Its flow or the pool was deleted.
        """
        pool = await self._client.read_work_pool(self._pool)
        deployment = await self.deployment_of(flow_run)
        return await self.training(flow_run, deployment, pool.base_job_template, {})

    async def renewed(self, training: Training) -> Training:
        """Return the training with the profiles that are known of its kind by now."""
        self._cache.ask_the_store_again()
        try:
            flow_run = await self._client.read_flow_run(UUID(training.run_id))
            return await self._with_profiles(training, flow_run, await self.deployment_of(flow_run))
        except ObjectNotFound:
            return training

    async def deployment_of(self, flow_run: FlowRun) -> DeploymentResponse | None:
        """Return the deployment of a run; None when it has none or it was deleted."""
        try:
            return await self._deployment(flow_run)
        except ObjectNotFound:
            return None

    async def _with_profiles(
        self, training: Training, flow_run: FlowRun, deployment: DeploymentResponse | None
    ) -> Training:
        """Attach what is known of the training's kind."""
        flow_name = await self._flow_name(flow_run.flow_id)
        parameters = {**_defaults(deployment), **flow_run.parameters}
        entrypoint = deployment.entrypoint if deployment else None
        keys: list[str] = []
        for recipe in self._recipes(flow_name, entrypoint):
            try:
                keys.append(recipe.key_for(parameters, training.gpus))
            except UnknownParameterError:
                continue  # the recipe of an older version of the flow
        if not keys:
            return training
        profiles = combined_profiles([self._profiles(key) for key in keys])
        return replace(training, profile_key="+".join(sorted(keys)), profiles=profiles)

    def _recipes(self, flow_name: str, entrypoint: str | None) -> tuple[Recipe, ...]:
        kind = (flow_name, entrypoint)
        if kind not in self._cache.recipes:
            self._cache.recipes[kind] = self._store.recipes_for(flow_name, entrypoint)
        return self._cache.recipes[kind]

    def _profiles(self, key: str) -> Mapping[str, Profile]:
        if key not in self._cache.profiles:
            self._cache.profiles[key] = self._store.profiles_for(key)
        return self._cache.profiles[key]

    async def _deployment(self, flow_run: FlowRun) -> DeploymentResponse | None:
        if flow_run.deployment_id is None:
            return None
        known = self._cache.deployments.get(flow_run.deployment_id)
        now = time.monotonic()
        if (
            known
            and now - known[0] < _DEPLOYMENT_FRESH_SECONDS
            and deployment_limit(known[1]) is None
        ):
            return known[1]
        if known and now - known[0] < 1.0:
            return known[1]
        deployment = await self._client.read_deployment(flow_run.deployment_id)
        self._cache.deployments[flow_run.deployment_id] = (now, deployment)
        return deployment

    async def _flow_name(self, flow_id: UUID) -> str:
        name = self._cache.flow_names.get(flow_id)
        if name is None:
            name = (await self._client.read_flow(flow_id)).name
            self._cache.flow_names[flow_id] = name
        return name

    async def _scheduled_runs(self) -> list[FlowRun]:
        runs: dict[UUID, FlowRun] = {}
        due = FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(
                before_=datetime.now(timezone.utc)
            ),
        )
        while True:
            page = await self._client.read_flow_runs(
                flow_run_filter=due,
                work_pool_filter=pool_filter(self._pool),
                work_queue_filter=queue_filter(self._queues) if self._queues else None,
                sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
                limit=_PAGE,
                offset=len(runs),
            )
            known = len(runs)
            runs.update((run.id, run) for run in page)
            if len(page) < _PAGE or len(runs) == known:
                return [run for run in runs.values() if not waits_in_its_process(run)]

    async def _read_queues(self) -> list[WorkQueue]:
        queues = await self._client.read_work_queues(work_pool_name=self._pool)
        return [queue for queue in queues if not self._queues or queue.name in self._queues]


def _environment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that a job sets for itself, as a whole or one by one."""
    whole = values.get("env")
    single = {name[4:]: value for name, value in values.items() if name.startswith("env.")}
    return {**(whole if isinstance(whole, dict) else {}), **single}


def _defaults(deployment: DeploymentResponse | None) -> dict[str, Any]:
    """Return the flow's parameter defaults: a run's parameters lack them."""
    if deployment is None or deployment.parameter_openapi_schema is None:
        return {}
    properties = deployment.parameter_openapi_schema.get("properties", {})
    return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


def combined_profiles(by_task: list[Mapping[str, Profile]]) -> dict[str, Profile]:
    """Return the profiles of a run with several training tasks, by device model.

    A run's memory is the highest of its tasks' peaks. Its activity is that of its most active
    task: a partner has to live with that one too. What is unknown of one task is unknown of the
    run.
    """
    if not by_task:
        return {}
    if len(by_task) == 1:
        return dict(by_task[0])
    models = set.intersection(*(set(profiles) for profiles in by_task))
    combined = {}
    for model in models:
        profiles = [task[model] for task in by_task]
        busiest = max(profiles, key=_activity)
        peaks = [profile.peak_memory_mib for profile in profiles]
        known_peaks = [peak for peak in peaks if peak is not None]
        combined[model] = replace(
            busiest,
            peak_memory_mib=max(known_peaks) if len(known_peaks) == len(peaks) else None,
        )
    return combined


def _activity(profile: Profile) -> float:
    """Return the active fraction; an unknown one may be the highest of all."""
    return math.inf if profile.active_fraction is None else profile.active_fraction
