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


def result(profile: Profile | None, *, exit_code: int = 0, processes: int = 1) -> CommandProfile:
    return CommandProfile(exit_code=exit_code, profile=profile, processes=processes)


def shown(profile: Profile | None, *, exit_code: int = 0, processes: int = 1) -> str:
    out = io.StringIO()
    ended = result(profile, exit_code=exit_code, processes=processes)
    print_profile("python train.py", ended, Console(file=out, width=120))
    return out.getvalue()


def is_bar(line: str) -> bool:
    return bool(line) and set(line) <= set("\u2588\u2593\u2592\u2591")


def test_without_colours_the_parts_of_a_step_are_told_apart() -> None:
    parts = ((30, "\u2588"), (12, "\u2593"), (15, "\u2592"), (3, "\u2591"))
    assert "".join(cells * block for cells, block in parts) in shown(PROFILE).splitlines()


def test_the_card_has_a_bar_its_legend_the_figures_and_their_meaning() -> None:
    text = shown(PROFILE)
    lines = text.splitlines()
    (bar,) = [line for line in lines if is_bar(line)]
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
    (bar,) = [line for line in shown(profile).splitlines() if is_bar(line)]
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
    fields = json.loads(measured(result(PROFILE, exit_code=3), ["python", "my train.py"]))
    assert tuple(fields) == (*FIELDS, "device_model", "measured_at_s", "command", "exit_code")
    assert fields["active_fraction_interval"] == [0.48, 0.52]
    assert fields["command"] == "python 'my train.py'"
    assert fields["exit_code"] == 3
    unmeasured = json.loads(measured(result(None), ["train"]))
    assert {name: unmeasured[name] for name in FIELDS} == {**dict.fromkeys(FIELDS), "steps": 0}
