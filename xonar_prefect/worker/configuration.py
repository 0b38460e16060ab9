"""What a deployment may ask of a xonar work pool: the job variables and their template."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorkerResult
from pydantic import ConfigDict, Field, ValidationError

from xonar_prefect.errors import JobVariableError


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
            "Memory to reserve on each device. Leave empty to use the measured peak with a margin; "
            "a training that was never profiled and requests nothing starts on an empty device."
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
    working_dir: Path | None = Field(
        default=None,
        title="Working directory",
        description="Directory to start the training in; by default a new, empty one.",
    )


class XonarJobConfiguration(BaseJobConfiguration):
    """How one training is launched, filled from the job variables."""

    memory_request_mib: int | None = Field(default=None)
    gpus: int = Field(default=1)
    exclusive: bool = Field(default=False)
    working_dir: Path | None = Field(default=None)


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
        raise JobVariableError.wrong(name, first["input"], first["msg"]) from error
