"""Publishes a training's profile as artifacts: a card for people and the data for workers."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate

from xonar_prefect.artifacts import Card
from xonar_prefect.core.codec import PROFILE_ARTIFACT_TYPE, profile_to_dict, recipe_to_dict
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.tasks.identity import TrainingIdentity

logger = logging.getLogger(__name__)

_ARTIFACT_VERSION = 1


class Publisher:
    """Creates the artifacts of one training; the newest of a key wins.

    Attributes:
        task_run_id: The profiling task run that they belong to, once it is known.
    """

    def __init__(self, identity: TrainingIdentity) -> None:
        self._identity = identity
        self.task_run_id: UUID | None = None

    def publish_profile(self, profile: Profile, measurement: Measurement) -> None:
        """Publish the data; raises whatever Prefect's client raises."""
        estimate = measurement.estimate
        data = {
            "version": _ARTIFACT_VERSION,
            "profile": profile_to_dict(profile),
            "recipe": recipe_to_dict(self._identity.recipe),
            "parameters": dict(self._identity.parameters),
            "gpus": self._identity.gpus,
            "window": {
                "started_at_s": measurement.started_at_s,
                "ended_at_s": measurement.ended_at_s,
                # As measured, beside a partner too: active time per step is their product.
                "step_seconds": estimate.step_seconds if estimate else None,
                "active_fraction": estimate.active_fraction if estimate else None,
            },
            "published_at_s": time.time(),
        }
        self._create(
            key=f"xonar-profile-data-{profile.key}",
            type=PROFILE_ARTIFACT_TYPE,
            description=f"Profile of {self._identity.name}, for the worker.",
            data=data,
        )

    def publish_card(self, card: Card) -> None:
        """Publish the card; a profile counts without it, so a failure is only logged."""
        recipe = self._identity.recipe
        try:
            self._create(
                key=f"xonar-profile-{slug(recipe.flow)}-{slug(recipe.task)}",
                type="markdown",
                description=card.description,
                data=card.markdown,
            )
        except Exception:
            logger.warning("The profile card could not be published.", exc_info=True)

    def _create(self, **artifact: Any) -> None:
        with get_client(sync_client=True) as client:
            client.create_artifact(
                ArtifactCreate(
                    flow_run_id=UUID(self._identity.flow_run_id),
                    task_run_id=self.task_run_id,
                    **artifact,
                )
            )


def slug(name: str) -> str:
    """Return a name as artifact keys allow it: lowercase letters, digits and dashes."""
    letters = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()
    )
    return "-".join(part for part in letters.split("-") if part) or "x"
