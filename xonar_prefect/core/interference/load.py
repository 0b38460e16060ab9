"""What interference knows of a training."""

from __future__ import annotations

from typing import NamedTuple

from xonar_prefect.core.interference.likeness import Likeness, likeness_of
from xonar_prefect.core.models import Training


class Load(NamedTuple):
    """What interference knows of a training.

    Attributes:
        key: Its kind; None when unknown.
        active_fraction: None when unknown.
        likeness: What its kind is compared with others by.
    """

    key: str | None
    active_fraction: float | None
    likeness: Likeness | None = None

    @classmethod
    def of(cls, training: Training, device_model: str) -> Load:
        """Return the load that the training is on this device model."""
        profile = training.profile_on(device_model)
        return cls(
            training.profile_key,
            None if profile is None else profile.active_fraction,
            likeness_of(training.parameters),
        )
