"""Profiles of one kind merge to the same result, whatever the order of their artifacts."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.models import Profile
from xonar_prefect.store.merging import DatedProfile, merge, with_peak_floor


@st.composite
def dated_profiles(draw: st.DrawFn) -> list[DatedProfile]:
    times = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6, unique=True))
    return [
        DatedProfile(
            profile=Profile(
                key="kind",
                device_model="V100",
                step_seconds=draw(st.none() | st.floats(0.01, 10)),
                peak_memory_mib=draw(st.none() | st.integers(1, 80_000)),
            ),
            published_at_s=float(time),
        )
        for time in times
    ]


@given(dated_profiles(), st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(profiles, random) -> None:
    shuffled = list(profiles)
    random.shuffle(shuffled)
    assert functools.reduce(merge, shuffled) == functools.reduce(merge, profiles)


@given(dated_profiles())
def test_peak_is_the_highest_ever_seen(profiles) -> None:
    peaks = [each.profile.peak_memory_mib for each in profiles]
    known = [peak for peak in peaks if peak is not None]
    merged = functools.reduce(merge, profiles).profile
    assert merged.peak_memory_mib == (max(known) if known else None)


@given(dated_profiles())
def test_newest_known_step_time_is_kept(profiles) -> None:
    known = [each for each in profiles if each.profile.step_seconds is not None]
    newest = max(known or profiles, key=lambda each: each.published_at_s)
    merged = functools.reduce(merge, profiles)
    assert merged.profile.step_seconds == newest.profile.step_seconds
    assert merged.published_at_s == newest.published_at_s


def test_source_of_the_higher_peak_goes_with_it() -> None:
    low = Profile(key="kind", device_model="V100", peak_memory_mib=10, memory_source="allocator")
    high = Profile(key="kind", device_model="V100", peak_memory_mib=20, memory_source="nvml")
    assert with_peak_floor(low, high).memory_source == "nvml"
    assert with_peak_floor(high, low) is high
