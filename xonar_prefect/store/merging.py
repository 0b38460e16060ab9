"""What two profiles of the same kind, device model and code version say together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xonar_prefect.core.models import Profile

_ACTIVITY = (
    "active_fraction",
    "active_fraction_interval",
    "communication_fraction",
    "input_fraction",
    "other_fraction",
    "source",
)
_STEP = ("step_seconds", "step_seconds_interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedProfile:
    """A profile and when its figures were published, seconds since the epoch."""

    profile: Profile
    published_at_s: float

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key: the higher, the better.

        A profile taken beside a partner does not know the step time alone: however new, it must
        not take the place of one that does.
        """
        return (self.profile.step_seconds is not None, self.published_at_s)


def merge(one: DatedProfile, other: DatedProfile) -> DatedProfile:
    """Keep the better figures of the two and the higher memory peak.

    Figures with a known step time win, then the newer ones; on a tie, those of `other`. The
    result does not depend on the order in which profiles arrive.
    """
    winner, loser = (one, other) if one.rank > other.rank else (other, one)
    return replace(winner, profile=with_peak_floor(winner.profile, loser.profile))


def says_less(offered: Profile, known: Profile) -> bool:
    """Tell whether a profile from a file must not take the place of the one that is known.

    So it is with one that rests on no steps, as from a table, with one that lacks the code version,
    without which the kind would be measured again, and with one that lacks the step time alone.
    """
    return (
        offered.steps == 0
        or (offered.code_version is None and known.code_version is not None)
        or (offered.step_seconds is None and known.step_seconds is not None)
    )


def completed(known: Profile, other: Profile) -> Profile:
    """Return what is known with what only the other knows, and at least its memory peaks."""
    changes: dict[str, Any] = {}
    if known.active_fraction is None and other.active_fraction is not None:
        changes = {name: getattr(other, name) for name in _ACTIVITY}
    if known.step_seconds is None and other.step_seconds is not None:
        changes |= {name: getattr(other, name) for name in _STEP}
    for name in ("framework", "device"):
        if getattr(known, name) is None:
            changes[name] = getattr(other, name)
    return with_peak_floor(replace(known, **changes), other)


def with_peak_floor(profile: Profile, floor: Profile) -> Profile:
    """Return the profile with at least the memory peaks of the other.

    A peak that was reached once can be reached again: a lower one never replaces it. What was held
    on the device may fall; it is taken over only where the profile does not know it.
    """
    changes: dict[str, Any] = {}
    if (floor.peak_memory_mib or 0) > (profile.peak_memory_mib or 0):
        changes["peak_memory_mib"] = floor.peak_memory_mib
        changes["memory_source"] = floor.memory_source
    if (floor.peak_host_memory_mib or 0) > (profile.peak_host_memory_mib or 0):
        changes["peak_host_memory_mib"] = floor.peak_host_memory_mib
    if profile.held_memory_mib is None and floor.held_memory_mib is not None:
        changes["held_memory_mib"] = floor.held_memory_mib
    return replace(profile, **changes) if changes else profile
