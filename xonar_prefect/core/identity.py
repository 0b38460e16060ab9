"""What makes two trainings the same kind: the profile key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xonar_prefect.errors import UnknownParameterError

_DIGEST_LENGTH = 16


def _parameter(parameters: Mapping[str, Any], path: str, flow: str) -> Any:
    """Return the parameter at a dotted path, through mappings."""
    value: Any = parameters
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise UnknownParameterError(path, flow, parameters)
        value = value[part]
    return value


def profile_key(
    *,
    flow: str,
    entrypoint: str | None,
    task: str,
    parameters: Mapping[str, Any],
    profile_by: Sequence[str] | None,
    gpus: int,
) -> str:
    """Compute the key under which a training's profile is stored.

    The training process and the worker call this one function, so that both arrive at the same
    key. The device model and the code version are fields of the profile, not parts of the key.

    Args:
        flow: Name of the flow.
        entrypoint: Entry point of its deployment; None outside a deployment.
        task: Name of the training task.
        parameters: Parameters of the flow run as JSON values, defaults filled in.
        profile_by: Dotted paths of the parameters that shape the work; None for all of them.
        gpus: Number of devices.

    Raises:
        UnknownParameterError: `profile_by` names a parameter that is not there.
    """
    shaping: Mapping[str, Any]
    if profile_by is None:
        shaping = parameters
    else:
        shaping = {path: _parameter(parameters, path, flow) for path in profile_by}
    identity = [flow, entrypoint, task, shaping, gpus]
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the keys of a flow's trainings are made; travels in the profile artifact.

    With it the worker computes the key of a held run without importing user code.

    Attributes:
        flow: Name of the flow.
        entrypoint: Entry point of its deployment; None outside a deployment.
        task: Name of the training task.
        profile_by: Dotted paths of the parameters that shape the work; None for all of them.
    """

    flow: str
    entrypoint: str | None
    task: str
    profile_by: tuple[str, ...] | None = None

    def key_for(self, parameters: Mapping[str, Any], gpus: int) -> str:
        """Return the profile key of a run with these parameters on this many devices.

        Raises:
            UnknownParameterError: `profile_by` names a parameter that is not there.
        """
        return profile_key(
            flow=self.flow,
            entrypoint=self.entrypoint,
            task=self.task,
            parameters=parameters,
            profile_by=self.profile_by,
            gpus=gpus,
        )
