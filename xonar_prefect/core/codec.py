"""What is stored or published as JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState, Transition
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.quarantine import Quarantine, QuarantineCause

# Types of the artifacts that carry them. Stored by Prefect: never renamed.
PROFILE_ARTIFACT_TYPE = "xonar-profile"
OBSERVATION_ARTIFACT_TYPE = "xonar-observation"


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


def ledger_entry_to_dict(entry: LedgerEntry) -> dict[str, Any]:
    """Return the ledger entry as JSON values; unknown is None."""
    return {**asdict(entry), "state": entry.state.value}


def ledger_entry_from_dict(values: Mapping[str, Any]) -> LedgerEntry:
    """Read a ledger entry; fields of a newer version are ignored.

    Raises:
        ValueError: A state that this version does not know.
    """
    known = _known(LedgerEntry, values)
    known["state"] = SlotState(known["state"])
    known["co_runs"] = tuple(CoRun(**_known(CoRun, each)) for each in known.get("co_runs", ()))
    return LedgerEntry(**known)


def transition_to_dict(transition: Transition) -> dict[str, Any]:
    """Return the transition as JSON values; unknown is None."""
    return {**asdict(transition), "state": transition.state.value}


def transition_from_dict(values: Mapping[str, Any]) -> Transition:
    """Read a transition; fields of a newer version are ignored.

    Raises:
        ValueError: A state that this version does not know.
    """
    known = _known(Transition, values)
    return Transition(**{**known, "state": SlotState(known["state"])})


def quarantine_to_dict(quarantine: Quarantine) -> dict[str, Any]:
    """Return the quarantine as JSON values; unknown is None."""
    return {**asdict(quarantine), "cause": quarantine.cause.value}


def quarantine_from_dict(values: Mapping[str, Any]) -> Quarantine:
    """Read a quarantine; fields of a newer version are ignored.

    Raises:
        ValueError: A cause that this version does not know.
    """
    known = _known(Quarantine, values)
    return Quarantine(**{**known, "cause": QuarantineCause(known["cause"])})
