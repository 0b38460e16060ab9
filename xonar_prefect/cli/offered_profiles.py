"""A profile that a file offers: every value is checked, and the first that cannot be is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from xonar_prefect.core.memory import UNKNOWN_MEMORY_MIB
from xonar_prefect.core.models import Profile

_SHARES = ("active_fraction", "communication_fraction", "input_fraction", "other_fraction")
_INTERVALS = ("step_seconds_interval", "active_fraction_interval")
_MEMORIES = ("peak_memory_mib", "held_memory_mib", "peak_host_memory_mib")
_MOST_STEPS = 10**12
_ROUNDING = 1e-3


def offered_profile(values: object) -> Profile:
    """Read a profile; fields of a newer version are ignored.

    Raises:
        ValueError: A value cannot be, or a required one is missing.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(values, dict):
        raise ValueError("it is no object")  # noqa: TRY004
    names = {field.name for field in fields(Profile)}
    try:
        profile = TypeAdapter(Profile).validate_python(
            {name: value for name, value in values.items() if name in names}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(_named(first["loc"], first["msg"], values)) from None
    _check(profile)
    return profile


def _named(location: tuple[int | str, ...], problem: str, values: Mapping[str, Any]) -> str:
    problem = problem.removeprefix("Value error, ").rstrip(".")
    if not location:
        return problem
    name = str(location[0])
    said = f"{name} is {values[name]!r}" if name in values else name
    return f"{said}: {problem[0].lower()}{problem[1:]}"


def _check(profile: Profile) -> None:
    """Refuse what a profile of ours never holds."""
    shares = [share for name in _SHARES if (share := getattr(profile, name)) is not None]
    if sum(shares) > 1.0 + _ROUNDING:
        raise ValueError(f"{', '.join(_SHARES)} add up to {sum(shares):.2f}, more than the step")
    for name in _INTERVALS:
        interval = getattr(profile, name)
        if interval is not None and not 0.0 <= interval[0] <= interval[1]:
            raise ValueError(f"{name} is {list(interval)}; it must be [low, high], zero or greater")
    for name in _MEMORIES:
        memory_mib = getattr(profile, name)
        if memory_mib is not None and memory_mib > UNKNOWN_MEMORY_MIB:
            raise ValueError(f"{name} is {memory_mib}, more than any device has")
    if profile.steps > _MOST_STEPS:
        raise ValueError(f"steps is {profile.steps}, more than can be")
