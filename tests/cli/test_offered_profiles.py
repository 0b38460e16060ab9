"""Profiles that files offer: what cannot be is refused, by the name of the field."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from xonar_prefect.cli.offered_profiles import offered_profile
from xonar_prefect.core.models import Profile

WHOLE = Profile(
    key="mlp",
    device_model="V100",
    active_fraction=0.5,
    communication_fraction=0.1,
    input_fraction=0.3,
    other_fraction=0.1,
    step_seconds=0.2,
    step_seconds_interval=(0.19, 0.21),
    active_fraction_interval=(0.48, 0.52),
    peak_memory_mib=1000,
    steps=20,
)


def test_what_was_written_is_read_and_what_is_newer_is_passed_over() -> None:
    values = {**asdict(WHOLE), "step_seconds_interval": [0.19, 0.21], "of_a_later_version": 1}
    assert offered_profile(values) == WHOLE


def test_unknown_is_null() -> None:
    assert offered_profile({"key": "a", "device_model": "b", "step_seconds": None}).steps == 0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"peak_memory_mib": 10**30}, "peak_memory_mib is 1000000000000000000000000000000, more"),
        ({"peak_memory_mib": "lots"}, "peak_memory_mib is 'lots': input should be a valid integer"),
        ({"measured_at_s": "x"}, "measured_at_s is 'x': input should be a valid number"),
        ({"active_fraction": 1.7}, "active_fraction is 1.7; it must be a fraction from 0 to 1"),
        ({"active_fraction": 0.9}, "add up to 1.40, more than the step"),
        ({"step_seconds_interval": [1]}, "step_seconds_interval is [1]: field required"),
        ({"step_seconds_interval": [2, 1]}, "step_seconds_interval is [2.0, 1.0]; it must be"),
        ({"active_fraction_interval": [-0.1, 0.1]}, "active_fraction_interval is [-0.1, 0.1]; it"),
        ({"steps": 10**30}, "steps is 1000000000000000000000000000000, more than can be"),
        ({"key": None}, "key is None: input should be a valid string"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        offered_profile({**asdict(WHOLE), **changes})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="device_model: field required"):
        offered_profile({"key": "a"})


def test_a_number_is_no_profile() -> None:
    with pytest.raises(ValueError, match="it is no object"):
        offered_profile(7)
