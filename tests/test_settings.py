"""Settings come from the environment, and what is wrong is said with the variable's name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import xonar_prefect
from xonar_prefect.cli.demo.janitor import HOME_VARIABLE
from xonar_prefect.errors import MisspeltSettingError, WrongSettingError
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE
from xonar_prefect.settings import SETTING_VARIABLES, XonarSettings, load_settings


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
        ("max_trainings_per_gpu", "2.5"),
        ("headroom_ratio", "1.5"),
        ("devices", "tpu"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"XONAR_{name.upper()}", value)
    with pytest.raises(WrongSettingError) as error:
        load_settings()
    assert str(error.value).startswith(f"XONAR_{name.upper()} is {value!r}: it must be ")
    assert str(error.value).endswith("; correct it or leave it out.")
    assert "Input" not in str(error.value)  # the words of pydantic


def test_the_rules_of_a_decision_are_those_of_the_settings() -> None:
    limits = load_settings(max_trainings_per_gpu=3, headroom_mib=7, max_wait_seconds=5.0).limits()
    assert (limits.max_trainings_per_gpu, limits.headroom_mib, limits.max_wait_seconds) == (3, 7, 5)


def test_every_setting_is_described() -> None:
    assert [n for n, field in XonarSettings.model_fields.items() if not field.description] == []


def test_a_wrong_value_is_answered_with_what_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XONAR_MAX_TRAININGS_PER_GPU", "many")
    with pytest.raises(WrongSettingError) as error:
        load_settings()
    assert str(error.value) == (
        "XONAR_MAX_TRAININGS_PER_GPU is 'many': it must be a whole number from 1 to 16; correct it "
        "or leave it out."
    )


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("XONAR_POLL_SECOND", "XONAR_POLL_SECONDS"),
        ("xonar_polcy", "XONAR_POLICY"),
        ("XONAR_HEADROOM_MB", "XONAR_HEADROOM_MIB"),
        ("XONAR_MAX_WAIT", "XONAR_MAX_WAIT_SECONDS"),
    ],
)
def test_a_misspelt_setting_is_named_with_the_one_that_is_meant(
    misspelt: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(misspelt, "1")
    with pytest.raises(MisspeltSettingError, match=f"^{misspelt.upper()} is set, .*{meant}\\?$"):
        load_settings()


def test_a_misspelt_setting_is_found_in_the_file_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\nXONAR_POLYCY=serial\n")
    with pytest.raises(MisspeltSettingError, match="XONAR_POLICY"):
        load_settings()


@pytest.mark.parametrize(
    "name",
    [
        RUN_DIRECTORY_VARIABLE,
        HOME_VARIABLE,
        "XONAR_TEST_HOME",
        "XONAR_CHAOS_TRAININGS",
        "XONAR_SOMETHING_OF_SOMEBODY_ELSE",
        "XONARPOLICY",
    ],
)
def test_variables_that_are_no_settings_are_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    load_settings()


def test_no_variable_that_the_package_itself_uses_is_taken_for_a_misspelt_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = Path(xonar_prefect.__file__).parent.rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    for name in set(re.findall(r"XONAR_[A-Z_]*[A-Z]\b", text)) - SETTING_VARIABLES:
        monkeypatch.setenv(name, "1")
    load_settings()


def test_nothing_is_kept_for_ever_unless_it_is_asked_for() -> None:
    keeps = {name for name in XonarSettings.model_fields if name.startswith("keep_")}
    assert keeps == {
        "keep_runs_days",
        "keep_artifacts_days",
        "keep_ledger_days",
        "keep_observations_days",
    }
    assert all(getattr(load_settings(), name) > 0 for name in keeps)
