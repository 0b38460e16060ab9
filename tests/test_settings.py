"""Settings come from the environment, and what is wrong is said with the variable's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.errors import SettingsError
from xonar_prefect.settings import XonarSettings, load_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a developer's own .env is not read
    for name in XonarSettings.model_fields:
        monkeypatch.delenv(f"XONAR_{name.upper()}", raising=False)


def test_the_home_is_below_the_users_and_holds_the_store() -> None:
    settings = load_settings()
    assert settings.home == Path("~/.xonar").expanduser()
    assert settings.effective_store_url == f"sqlite:///{settings.home / 'store.db'}"


def test_a_command_line_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XONAR_POLICY", "serial")
    assert load_settings().policy == "serial"
    assert load_settings(policy="parallel").policy == "parallel"
    assert load_settings(policy=None).policy == "serial"


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XONAR_POLL_SECONDS", "")
    assert load_settings().poll_seconds == XonarSettings.model_fields["poll_seconds"].default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("poll_seconds", "inf"),
        ("poll_seconds", "0"),
        ("watch_seconds", "soon"),
        ("memory_margin_ratio", "nan"),
        ("max_trainings_per_gpu", "0"),
        ("devices", "tpu"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"XONAR_{name.upper()}", value)
    with pytest.raises(SettingsError, match=f"^XONAR_{name.upper()} is '{value}': "):
        load_settings()


def test_the_rules_of_a_decision_are_those_of_the_settings() -> None:
    limits = load_settings(max_trainings_per_gpu=3, headroom_mib=7, max_wait_seconds=5.0).limits()
    assert (limits.max_trainings_per_gpu, limits.headroom_mib, limits.max_wait_seconds) == (3, 7, 5)


def test_every_setting_is_described() -> None:
    assert [n for n, field in XonarSettings.model_fields.items() if not field.description] == []
