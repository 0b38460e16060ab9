"""What two profiles of the same kind, device model and code version say together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xonar_prefect.core.models import Profile


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
