"""Takes in what trainings publish: profiles and, from their windows, what sharing really costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import anyio.to_thread
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import Artifact
from prefect.client.schemas.sorting import ArtifactSort

from xonar_prefect.core.codec import (
    OBSERVATION_ARTIFACT_TYPE,
    PROFILE_ARTIFACT_TYPE,
    observation_from_dict,
    observation_to_dict,
    profile_from_dict,
    recipe_from_dict,
)
from xonar_prefect.core.models import Observation
from xonar_prefect.store import Store
from xonar_prefect.worker.co_runs import LEAST_STEPS, measured_slowdown, solo_step_seconds
from xonar_prefect.worker.durations import duration_alone
from xonar_prefect.worker.slots import Slot

_PAGE = 200

_logger = logging.getLogger(__name__)


class Learning:
    """The worker's way from artifacts and reports into its store."""

    def __init__(self, client: PrefectClient, store: Store, clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock

    async def rebuild(self) -> int:
        """Take in every profile and observation that the server has; return how many were new.

        Ingesting is idempotent, so this also restores a lost store.
        """
        new = 0
        for artifact_type in (PROFILE_ARTIFACT_TYPE, OBSERVATION_ARTIFACT_TYPE):
            offset = 0
            while page := await self._artifacts(artifact_type, offset=offset):
                for artifact in page:
                    new += await self._ingest(artifact)
                offset += len(page)
        return new

    async def read_profiles(self, slot: Slot, *, joint: bool) -> int:
        """Take in the profiles that a running training has published.

        Args:
            slot: The training.
            joint: Whether a partner was there while it was measured.
        """
        artifacts = await self._artifacts(
            PROFILE_ARTIFACT_TYPE, flow_run_id=UUID(slot.entry.run_id)
        )
        new = 0
        for artifact in artifacts:
            new += await self._ingest(artifact, joint=joint)
        return new

    async def observe(self, slot: Slot) -> None:
        """Store and publish what a finished training's windows say."""
        key, model = slot.entry.profile_key, slot.entry.device_model
        if key is None:
            return
        profile = self._store.profiles_for(key).get(model)
        duration = duration_alone(slot.entry, profile.step_seconds if profile else None)
        if duration is not None:
            await anyio.to_thread.run_sync(self._store.record_duration, key, model, duration)
        if "+" in key:  # several tasks: their steps cannot be told apart
            return
        solo = solo_step_seconds(slot.meter.co_runs)
        if solo is not None and profile is not None and solo[1] >= profile.steps:
            await anyio.to_thread.run_sync(self._store.set_step_seconds, key, model, *solo)
            solo_seconds: float | None = solo[0]
        else:
            solo_seconds = profile.step_seconds if profile else None
        for window in slot.meter.co_runs:
            slowdown = measured_slowdown(window, solo_seconds)
            if slowdown is None or window.steps < LEAST_STEPS or not all(window.partner_keys):
                continue
            observation = Observation(
                device_model=model,
                profile_key=key,
                partner_keys=tuple(sorted(window.partner_keys)),
                slowdown=slowdown,
                steps=window.steps,
                observed_at_s=self._clock(),
            )
            artifact = await self._client.create_artifact(
                ArtifactCreate(
                    key=f"xonar-observation-data-{key}",
                    type=OBSERVATION_ARTIFACT_TYPE,
                    description=f"Slowdown {slowdown:.2f} beside {len(window.partners)} partner(s)",
                    data={"version": 1, "observation": observation_to_dict(observation)},
                    flow_run_id=UUID(slot.entry.run_id),
                )
            )
            await anyio.to_thread.run_sync(
                self._store.ingest_observation, str(artifact.id), observation
            )

    async def _artifacts(
        self, artifact_type: str, *, flow_run_id: UUID | None = None, offset: int = 0
    ) -> Sequence[Artifact]:
        run_filter = ArtifactFilterFlowRunId(any_=[flow_run_id]) if flow_run_id else None
        artifact_filter = ArtifactFilter(type=ArtifactFilterType(any_=[artifact_type]))
        if run_filter is not None:
            artifact_filter.flow_run_id = run_filter
        return await self._client.read_artifacts(
            artifact_filter=artifact_filter,
            sort=ArtifactSort.CREATED_DESC,
            limit=_PAGE,
            offset=offset,
        )

    async def _ingest(self, artifact: Artifact, *, joint: bool = False) -> bool:
        data: Any = artifact.data
        artifact_id = str(artifact.id)
        created = artifact.created.timestamp() if artifact.created else 0.0
        try:
            if artifact.type == OBSERVATION_ARTIFACT_TYPE:
                observation = observation_from_dict(data["observation"])
                return await anyio.to_thread.run_sync(
                    self._store.ingest_observation, artifact_id, observation
                )
            profile = profile_from_dict(data["profile"])
            recipe = recipe_from_dict(data["recipe"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _logger.warning("Artifact %s is not a profile of ours: %s", artifact_id, error)
            return False
        if joint and not profile.joint:
            profile = profile.as_joint()
        return await anyio.to_thread.run_sync(
            self._store.ingest_profile, artifact_id, profile, recipe, created
        )
