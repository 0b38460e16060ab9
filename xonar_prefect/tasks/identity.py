"""Which training this is: its profile key and all that the profile says about where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect.context import FlowRunContext

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Profile
from xonar_prefect.run_directory import Placement, RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingIdentity:
    """One training task of one flow run.

    Attributes:
        name: Name of the task, or of the flow where the flow is the training.
        flow_run_id: Id of its flow run.
        recipe: How its profile key is made.
        parameters: Parameters of the flow run as JSON values, defaults filled in.
        key: Its profile key.
        code_version: Version of the flow.
        placement: What the worker said; None when no worker launched it.
    """

    name: str
    flow_run_id: str
    recipe: Recipe
    parameters: Mapping[str, Any] = field(default_factory=dict)
    key: str
    code_version: str | None
    placement: Placement | None

    @property
    def gpus(self) -> int:
        """Number of devices, a part of the key."""
        return self.placement.gpus if self.placement else 1

    @property
    def on_gpu(self) -> bool:
        """Whether the worker put it on GPUs."""
        return self.placement is not None and self.placement.device_kind == "nvidia"

    @property
    def joint(self) -> bool:
        """Whether a partner was on its device when it was launched."""
        return self.placement is not None and self.placement.shared

    @property
    def earlier_profile(self) -> Profile | None:
        """The profile that the worker knows, of whatever code version."""
        return self.placement.known_profiles.get(self.key) if self.placement else None

    @property
    def known_profile(self) -> Profile | None:
        """The profile that makes measuring unnecessary, if there is one.

        One of other code does not count, nor one without an active fraction, nor one without a
        solo step time when this run can measure it.
        """
        profile = self.earlier_profile
        if profile is None or profile.code_version != self.code_version:
            return None
        if profile.active_fraction is None:
            return None
        if profile.step_seconds is None and not self.joint:
            return None
        return profile


def identify(name: str, profile_by: tuple[str, ...] | None) -> TrainingIdentity | None:
    """Identify the training that starts in this context; None outside a flow run.

    Raises:
        UnknownParameterError: `profile_by` names a parameter that the flow run does not have.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return None
    directory = RunDirectory.from_environment()
    placement = directory.read_placement() if directory else None
    # As the worker sees them: what the API has, over the defaults in the flow's schema.
    properties = context.flow.parameters.properties
    defaults = {n: schema["default"] for n, schema in properties.items() if "default" in schema}
    parameters = {**defaults, **context.flow_run.parameters}
    recipe = Recipe(
        flow=context.flow.name,
        entrypoint=placement.entrypoint if placement else None,
        task=name,
        profile_by=profile_by,
    )
    return TrainingIdentity(
        name=name,
        flow_run_id=str(context.flow_run.id),
        recipe=recipe,
        parameters=parameters,
        key=recipe.key_for(parameters, placement.gpus if placement else 1),
        code_version=context.flow.version,
        placement=placement,
    )
