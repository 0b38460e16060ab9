from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from xonar_prefect.cli.profile_card import FIELDS, measured, print_profile
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.command import CommandProfile

PROFILE = Profile(
    key="command",
    device_model="cpu",
    active_fraction=0.5,
    active_fraction_interval=(0.48, 0.52),
    communication_fraction=0.2,
    input_fraction=0.25,
    other_fraction=0.05,
    step_seconds=0.0213,
    step_seconds_interval=(0.0208, 0.0218),
    peak_memory_mib=812,
    memory_source="rss",
    steps=24,
    source="cpu-time",
    framework="torch 2.13.0",
    device="2 processor cores",
)


def shown(profile: Profile | None, *, exit_code: int = 0, processes: int = 1) -> str:
    out = io.StringIO()
    print_profile(
        "python train.py",
        CommandProfile(exit_code=exit_code, profile=profile, processes=processes),
        Console(file=out, width=120),
    )
    return out.getvalue()


def test_the_card_has_a_bar_its_legend_the_figures_and_their_meaning() -> None:
    text = shown(PROFILE)
    lines = text.splitlines()
    (bar,) = [line for line in lines if line and set(line) == {"\u2588"}]
    assert len(bar) == 60
    assert "active 50%" in text
    assert "communication 20%" in text
    assert "21.3 ms (95 %: 20.8 ms to 21.8 ms)" in text
    assert "812 MiB (rss)" in text
    assert "torch 2.13.0" in text
    assert "50 % active: pairs well with trainings below 50 %." in text
    assert "Confidence: high" in text
    assert "None" not in text


@pytest.mark.parametrize("share", [0.0, 0.004, 0.333, 1.0])
def test_the_bar_is_always_as_long(share: float) -> None:
    profile = replace(
        PROFILE, active_fraction=share, communication_fraction=None, input_fraction=None
    )
    (bar,) = [line for line in shown(profile).splitlines() if line and set(line) == {"\u2588"}]
    assert len(bar) == 60


def test_unknown_is_a_dash() -> None:
    text = shown(Profile(key="command", device_model="cpu", steps=3))
    assert "-" in text
    assert "None" not in text
    assert "\u2588" not in text


def test_nothing_measured_is_told() -> None:
    assert "Nothing was measured" in shown(None)


def test_a_failed_command_is_told() -> None:
    assert "exit code of the command" in shown(PROFILE, exit_code=137)
    assert "137" in shown(PROFILE, exit_code=137)
    assert "exit code" not in shown(PROFILE)


def test_the_json_has_the_fields_that_were_promised_and_what_an_import_asks() -> None:
    fields = json.loads(measured(PROFILE, ["python", "my train.py"]))
    assert tuple(fields) == (*FIELDS, "device_model", "measured_at_s", "command")
    assert fields["active_fraction_interval"] == [0.48, 0.52]
    assert fields["command"] == "python 'my train.py'"
    unmeasured = json.loads(measured(None, ["train"]))
    assert {name: unmeasured[name] for name in FIELDS} == {**dict.fromkeys(FIELDS), "steps": 0}
