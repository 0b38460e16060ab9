"""Turns the runs of a pool into trainings: job variables, priority, and what is known of a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import anyio.to_thread
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import Flow, FlowRun, WorkQueue
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Profile, Training
from xonar_prefect.errors import UnknownParameterError
from xonar_prefect.store import Store, StoredProfile
from xonar_prefect.worker.configuration import (
    XonarVariables,
    checked_variables,
    takes_all_memory,
)
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.describing import as_text, owner_in
from xonar_prefect.worker.limits import DEFAULT_QUEUE
from xonar_prefect.worker.requeueing import with_history


class HeldRuns:
    """Turns runs of one pool, held or not, into trainings."""

    def __init__(
        self, client: PrefectClient, store: Store, pool: str, deployments: Deployments
    ) -> None:
        self._client = client
        self._store = store
        self._pool = pool
        self._deployments = deployments
        self._flows: dict[UUID, Flow] = {}
        # What the store says; thousands of runs are of few kinds.
        self._recipes: dict[tuple[str, str | None], tuple[Recipe, ...]] = {}
        self._stored: tuple[StoredProfile, ...] = ()
        self._profiles: dict[str, dict[str, Profile]] = {}

    async def learn(self) -> bool:
        """Ask the store what it knows now; return whether that is news."""
        stored = await anyio.to_thread.run_sync(self._store.profiles)
        self._recipes.clear()
        if stored == self._stored:
            return False
        self._stored = stored
        self._profiles = {}
        for each in stored:
            kind = self._profiles.setdefault(each.profile.key, {})
            kind[each.profile.device_model] = each.profile
        return True

    async def training(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None,
        template: Mapping[str, Any],
        queues: Mapping[str, WorkQueue],
        *,
        parent: str | None = None,
    ) -> Training:
        """Turn one flow run into a training, with the profiles that are known of its kind.

        Args:
            flow_run: The run.
            deployment: Its deployment.
            template: The pool's base job template.
            queues: The pool's queues by name.
            parent: Id of the run that started it and may wait for it.

        Raises:
            JobVariableError: A job variable is misspelt or wrong.
            ObjectNotFound: Its flow was deleted.
        """
        values = _values(flow_run, deployment)
        variables = checked_variables(template, values)
        queue = queues.get(flow_run.work_queue_name or DEFAULT_QUEUE)
        submitted = flow_run.expected_start_time or flow_run.created
        training = Training(
            run_id=str(flow_run.id),
            name=flow_run.name,
            submitted_at_s=submitted.timestamp() if submitted else 0.0,
            gpus=variables.gpus,
            priority=queue.priority if queue and queue.priority else 1,
            queue=flow_run.work_queue_name or DEFAULT_QUEUE,
            deployment=str(flow_run.deployment_id) if flow_run.deployment_id else None,
            memory_request_mib=variables.memory_request_mib,
            exclusive=variables.exclusive,
            memory_elastic=variables.memory_elastic or takes_all_memory(_environment(values)),
            host_memory_mib=variables.host_memory_mib,
            cpu_threads=variables.cpu_threads,
            shared_memory_mib=variables.shared_memory_mib,
            parent=parent,
            owner=variables.owner or owner_in(flow_run.tags),
        )
        training = with_history(training, flow_run.labels)
        return await self._with_profiles(training, flow_run, deployment)

    async def variables_of(self, flow_run: FlowRun) -> XonarVariables:
        """Return the job variables of a run of this pool.

        Raises:
            JobVariableError: A job variable is misspelt or wrong.
            ObjectNotFound: The pool was deleted.
        """
        pool = await self._client.read_work_pool(self._pool)
        deployment = await self._deployments.read(flow_run.deployment_id)
        return checked_variables(pool.base_job_template, _values(flow_run, deployment))

    async def training_of(self, flow_run: FlowRun) -> Training:
        """Turn a run of this pool, held or not, into a training.

        Raises:
            JobVariableError: A job variable is misspelt or wrong.
            ObjectNotFound: Its flow or the pool was deleted.
        """
        await self.learn()
        pool = await self._client.read_work_pool(self._pool)
        deployment = await self._deployments.read(flow_run.deployment_id)
        return await self.training(flow_run, deployment, pool.base_job_template, {})

    async def renewed(self, training: Training) -> Training:
        """Return the training with the profiles that are known of its kind by now."""
        await self.learn()
        try:
            flow_run = await self._client.read_flow_run(UUID(training.run_id))
            deployment = await self._deployments.read(flow_run.deployment_id)
            return await self._with_profiles(training, flow_run, deployment)
        except ObjectNotFound:
            return training

    async def _with_profiles(
        self, training: Training, flow_run: FlowRun, deployment: DeploymentResponse | None
    ) -> Training:
        """Attach what is known of the training's kind."""
        flow_name = (await self.flow(flow_run.flow_id)).name
        parameters = {**parameter_defaults(deployment), **flow_run.parameters}
        entrypoint = deployment.entrypoint if deployment else None
        keys: list[str] = []
        for recipe in self._recipes_of(flow_name, entrypoint):
            try:
                keys.append(recipe.key_for(parameters, training.gpus))
            except UnknownParameterError:
                continue  # the recipe of an older version of the flow
        if not keys:
            return training
        profiles = combined_profiles([self._profiles.get(key, {}) for key in keys])
        return replace(
            training,
            profile_key="+".join(sorted(keys)),
            profiles=profiles,
            parameters=as_text(flow_name, parameters),
        )

    def _recipes_of(self, flow_name: str, entrypoint: str | None) -> tuple[Recipe, ...]:
        kind = (flow_name, entrypoint)
        if kind not in self._recipes:
            self._recipes[kind] = self._store.recipes_for(flow_name, entrypoint)
        return self._recipes[kind]

    async def flow(self, flow_id: UUID) -> Flow:
        """Return a flow; what is used of it never changes.

        Raises:
            ObjectNotFound: It was deleted.
        """
        if flow_id not in self._flows:
            self._flows[flow_id] = await self._client.read_flow(flow_id)
        return self._flows[flow_id]


def _values(flow_run: FlowRun, deployment: DeploymentResponse | None) -> dict[str, Any]:
    """Return the job variables of a run: those of its deployment, overridden by its own."""
    values = dict(deployment.job_variables or {}) if deployment else {}
    return {**values, **(flow_run.job_variables or {})}


def _environment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that a job sets for itself, as a whole or one by one."""
    whole = values.get("env")
    single = {name[4:]: value for name, value in values.items() if name.startswith("env.")}
    return {**(whole if isinstance(whole, dict) else {}), **single}


def parameter_defaults(deployment: DeploymentResponse | None) -> dict[str, Any]:
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
