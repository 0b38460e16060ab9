"""What a deployment may ask of a xonar work pool: the job variables and their template."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import Flow, FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorkerResult
from pydantic import ConfigDict, Field, ValidationError

from xonar_prefect.errors import JobVariableError
from xonar_prefect.fields import expected


def _plain_form(schema: dict[str, Any]) -> None:
    """Make the pool's form readable: no `X | None` toggles, a fixed order of fields."""
    for position, property_schema in enumerate(schema["properties"].values()):
        choices = [choice for choice in property_schema.pop("anyOf", []) if choice != _NULL]
        for choice in choices[:1]:
            property_schema.update(choice)
        if property_schema.get("default", ...) is None:
            del property_schema["default"]
        property_schema["position"] = position


_NULL = {"type": "null"}


class XonarVariables(BaseVariables):
    """Job variables of a training in a xonar pool."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_plain_form)

    memory_request_mib: int | None = Field(
        default=None,
        ge=1,
        title="GPU memory request (MiB)",
        description=(
            "Memory to reserve on each device: nobody else is given it. It is also the limit of "
            "the allocators that can be capped (TensorFlow, PyTorch, JAX). Leave empty to use "
            "the measured peak with a margin; a training that was never profiled and requests "
            "nothing starts on an empty device."
        ),
    )
    gpus: int = Field(
        default=1,
        ge=0,
        title="GPUs",
        description="Devices the training needs at once; 0 runs it without any.",
    )
    exclusive: bool = Field(
        default=False, title="Exclusive", description="Never share a device with another training."
    )
    memory_elastic: bool = Field(
        default=False,
        title="Takes what memory it finds",
        description=(
            "Set it where a training sizes itself to the free memory, as an automatic search for "
            "the batch size does. It then has a device to itself, or what it requests."
        ),
    )
    host_memory_mib: int | None = Field(
        default=None,
        ge=1,
        title="Host memory request (MiB)",
        description=(
            "Main memory to reserve on the host, shared memory included. Leave empty to use what "
            "its kind was measured to use, and before that an even share of the host."
        ),
    )
    cpu_threads: int | None = Field(
        default=None,
        ge=1,
        title="CPU threads",
        description=(
            "Processor threads to reserve and to start its libraries with. Leave empty to reserve "
            "none and to start them with an even share of the host's."
        ),
    )
    shared_memory_mib: int | None = Field(
        default=None,
        ge=1,
        title="Shared memory request (MiB)",
        description=(
            "Room in /dev/shm to reserve, which data loaders with several processes use. Leave "
            "empty to reserve none."
        ),
    )
    owner: str | None = Field(
        default=None,
        title="Owner",
        description=(
            "Whose training it is: owners share the devices evenly. By default the tag "
            "`owner:NAME` of the run tells it."
        ),
    )
    working_dir: Path | None = Field(
        default=None,
        title="Working directory",
        description="Directory to start the training in; by default a new, empty one.",
    )
    max_requeues: int | None = Field(
        default=None,
        ge=0,
        title="Restarts after the host's fault",
        description=(
            "How often the training is started again after its processes were killed from "
            "outside: the host was restarted or ran out of memory. Leave empty for the worker's "
            "setting (once); 0 for a training that must not be begun twice."
        ),
    )


class XonarJobConfiguration(BaseJobConfiguration):
    """How one training is launched, filled from the job variables."""

    memory_request_mib: int | None = Field(default=None)
    gpus: int = Field(default=1)
    exclusive: bool = Field(default=False)
    memory_elastic: bool = Field(default=False)
    host_memory_mib: int | None = Field(default=None)
    cpu_threads: int | None = Field(default=None)
    shared_memory_mib: int | None = Field(default=None)
    owner: str | None = Field(default=None)
    working_dir: Path | None = Field(default=None)
    max_requeues: int | None = Field(default=None)

    @classmethod
    async def of(
        cls,
        flow_run: FlowRun,
        *,
        deployment: DeploymentResponse | None,
        flow: Flow,
        work_pool: WorkPool,
        worker_name: str,
        worker_id: UUID | None,
        client: PrefectClient,
    ) -> XonarJobConfiguration:
        """Return how a run is launched: the pool's template filled with its job variables.

        Args:
            flow_run: The run; its variables go before those of the deployment.
            deployment: Its deployment.
            flow: Its flow.
            work_pool: The pool.
            worker_name: Name of the worker.
            worker_id: Id of the worker at the server.
            client: Of the server, for blocks and variables that the template refers to.
        """
        of_deployment = dict(deployment.job_variables or {}) if deployment else {}
        of_run = dict(flow_run.job_variables or {})
        values = {**of_deployment, **of_run}
        environments = (of_deployment.get("env"), of_run.get("env"))
        if all(isinstance(each, dict) for each in environments):
            values["env"] = {**of_deployment["env"], **of_run["env"]}
        configuration: XonarJobConfiguration = await cls.from_template_and_values(
            base_job_template=work_pool.base_job_template, values=values, client=client
        )
        configuration.prepare_for_flow_run(
            flow_run=flow_run,
            deployment=deployment,
            flow=flow,
            work_pool=work_pool,
            worker_name=worker_name,
            worker_id=worker_id,
        )
        return configuration


class XonarWorkerResult(BaseWorkerResult):
    """How a training's infrastructure ended.

    The status code is zero also when the training crashed: its state is then already set from
    its exit code, and the base class must not write another.
    """


def checked_variables(template: Mapping[str, Any], values: Mapping[str, Any]) -> XonarVariables:
    """Check the job variables of a run against the pool's template.

    Args:
        template: The pool's base job template.
        values: Variables of the deployment, overridden by those of the run.

    Raises:
        JobVariableError: A variable is misspelt or has a wrong value.
    """
    properties = template.get("variables", {}).get("properties", {})
    known = set(properties) | set(XonarVariables.model_fields)
    for name in values:
        # `env.NAME` sets one entry of a dictionary variable.
        if name.split(".")[0] not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise JobVariableError.unknown(name, near[0] if near else None, known)
    merged = {
        name: schema["default"]
        for name, schema in properties.items()
        if name in XonarVariables.model_fields and schema.get("default") is not None
    }
    merged.update(
        (name, value) for name, value in values.items() if name in XonarVariables.model_fields
    )
    try:
        return XonarVariables.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        field = XonarVariables.model_fields[str(first["loc"][0])]
        raise JobVariableError.wrong(name, first["input"], expected(field)) from error


_NO = frozenset({"0", "false", "f", "no", "n", "off"})
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})


def takes_all_memory(environment: Mapping[str, Any]) -> bool:
    """Tell whether a job's own environment has its framework take a whole GPU in advance.

    The worker sets these variables the other way round, and the job may set them back.
    """
    grows = str(environment.get("TF_FORCE_GPU_ALLOW_GROWTH") or "").lower()
    preallocates = str(environment.get("XLA_PYTHON_CLIENT_PREALLOCATE") or "").lower()
    return grows in _NO or preallocates in _YES
