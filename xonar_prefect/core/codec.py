"""Profiles, recipes and observations as JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Observation, Profile


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields this version knows, with JSON's lists as tuples again."""
    names = {field.name for field in fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in names
    }


def profile_to_dict(profile: Profile) -> dict[str, Any]:
    """Return the profile as JSON values; unknown is None."""
    return asdict(profile)


def profile_from_dict(values: Mapping[str, Any]) -> Profile:
    """Read a profile; fields of a newer version are ignored.

    Raises:
        InvalidValueError: A value that cannot be.
        TypeError: A required field is missing.
    """
    return Profile(**_known(Profile, values))


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as JSON values."""
    return asdict(recipe)


def recipe_from_dict(values: Mapping[str, Any]) -> Recipe:
    """Read a recipe; fields of a newer version are ignored."""
    return Recipe(**_known(Recipe, values))


def observation_to_dict(observation: Observation) -> dict[str, Any]:
    """Return the observation as JSON values."""
    return asdict(observation)


def observation_from_dict(values: Mapping[str, Any]) -> Observation:
    """Read an observation; fields of a newer version are ignored.

    Raises:
        InvalidValueError: A value that cannot be.
    """
    return Observation(**_known(Observation, values))
