from __future__ import annotations

from dataclasses import replace

import pytest

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Profile
from xonar_prefect.store import Store

RECIPE = Recipe(flow="digits", entrypoint="digits.py:digits", task="train", profile_by=("model",))
PROFILE = Profile(
    key="3f2a9c",
    device_model="V100",
    active_fraction=0.62,
    active_fraction_interval=(0.58, 0.66),
    step_seconds=0.0215,
    peak_memory_mib=1234,
    steps=14,
    device="GPU-8f3c1d2e-1111-2222-3333-444455556666",
)


@pytest.fixture
def profiled(store: Store) -> Store:
    store.ingest_profile("a1", PROFILE, RECIPE, 1000.0)
    store.ingest_profile("a2", Profile(key="3fff00", device_model="cpu"), RECIPE, 2000.0)
    return store


def test_nothing_profiled_is_said(xonar) -> None:
    assert "Nothing was profiled yet" in xonar("profiles", "list").words
    assert xonar("profiles", "list", "--json").json == []


def test_profiles_are_listed_and_the_unknown_is_a_dash(xonar, profiled) -> None:
    output = xonar("profiles", "list").words
    assert "3fff00 digits train cpu - - - 0" in output
    assert "3f2a9c digits train V100 62% 21.5 ms 1,234 MiB 14" in output


def test_list_as_json_has_every_figure(xonar, profiled) -> None:
    latest, earlier = xonar("profiles", "list", "--json").json
    assert latest["step_seconds"] is None
    assert earlier["step_seconds"] == 0.0215
    assert earlier["recipe"]["profile_by"] == ["model"]
    assert earlier["published_at_s"] == 1000.0


def test_beginning_of_a_key_is_enough(xonar, profiled) -> None:
    ended = xonar("profiles", "show", "3f2")
    assert ended.status == 0
    assert "active fraction 62% (95 %: 58% to 66%)" in ended.words
    assert "device GPU-8f3c1d2e" in ended.words
    assert [each["key"] for each in xonar("profiles", "show", "3f2", "--json").json] == ["3f2a9c"]


def test_ambiguous_key_names_the_choices(xonar, profiled) -> None:
    ended = xonar("profiles", "show", "3f")
    assert ended.status == 1
    assert "3f2a9c, 3fff00" in ended.errors


def test_unknown_key_says_where_to_look(xonar, profiled) -> None:
    ended = xonar("profiles", "show", "zzz")
    assert ended.status == 1
    assert ended.errors == (
        "xonar: No profile has the key 'zzz'; `xonar profiles list` shows those that exist.\n"
    )


def test_an_export_as_json_is_taken_in_again_as_it_was(xonar, profiled, tmp_path) -> None:
    known = xonar("profiles", "list", "--json").json
    assert xonar("profiles", "export", "--json", str(tmp_path / "all.json")).status == 0
    assert xonar("profiles", "forget", "3f2").status == 0
    assert [each["key"] for each in xonar("profiles", "list", "--json").json] == ["3fff00"]
    ended = xonar("profiles", "import", str(tmp_path / "all.json"))
    assert "1 profile was taken in" in ended.output
    assert "1 profile was left out" in ended.output
    assert xonar("profiles", "list", "--json").json == known


def test_an_export_goes_by_the_name_of_the_file(xonar, profiled, tmp_path) -> None:
    named = tmp_path / "all.json"
    assert xonar("profiles", "export", str(named)).status == 0
    assert xonar("profiles", "import", str(named)).status == 0
    assert xonar("profiles", "export", "--json", str(tmp_path / "all.txt")).status == 0
    assert (tmp_path / "all.txt").read_text() == named.read_text()


def test_an_export_as_csv_is_what_simulations_read(xonar, profiled, tmp_path) -> None:
    lines = xonar("profiles", "export").output.splitlines()
    assert lines[0] == ("training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib,flow,task")
    assert lines[1] == "3fff00,cpu,,,,,digits,train"
    (tmp_path / "all.csv").write_text("\n".join(lines))
    assert xonar("profiles", "forget", "3f2a").status == 0
    assert xonar("profiles", "import", str(tmp_path / "all.csv")).status == 0
    again = {each["key"]: each for each in xonar("profiles", "list", "--json").json}["3f2a9c"]
    assert again["active_fraction"] == pytest.approx(0.62)
    assert again["step_seconds"] == pytest.approx(0.0215)
    assert again["peak_memory_mib"] == 1234


@pytest.fixture
def measured(store: Store) -> Profile:
    """A profile as a deployed training leaves it."""
    profile = replace(PROFILE, code_version="v1", framework="torch 2", steps=1395)
    store.ingest_profile("a1", profile, RECIPE, 1000.0)
    return profile


def test_an_export_as_csv_taken_in_again_loses_nothing(xonar, measured, tmp_path) -> None:
    known = xonar("profiles", "list", "--json").json
    assert xonar("profiles", "export", str(tmp_path / "all.csv")).status == 0
    ended = xonar("profiles", "import", str(tmp_path / "all.csv"))
    assert xonar("profiles", "list", "--json").json == known
    assert "0 profiles were taken in" in ended.output
    assert "1 profile was left out, as what is known" in ended.words
    assert "`xonar profiles forget 3f2a9c` first" in ended.words


def test_csv_completes_what_is_known(xonar, store, tmp_path) -> None:
    joint = replace(PROFILE.as_joint(), code_version="v1")
    store.ingest_profile("a1", joint, RECIPE, 1000.0)
    header = "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
    (tmp_path / "all.csv").write_text(header + "3f2a9c,V100,10,10,,5\n")
    ended = xonar("profiles", "import", str(tmp_path / "all.csv"))
    assert "0 profiles were taken in" in ended.output
    assert "1 profile was used to complete what is known" in ended.words
    assert "left out" not in ended.output
    assert store.profiles_for("3f2a9c") == {
        "V100": replace(joint, active_fraction=0.5, step_seconds=0.02)
    }


def test_a_backup_brings_back_what_a_table_has_hidden(xonar, store, measured, tmp_path) -> None:
    assert xonar("profiles", "export", "--json", str(tmp_path / "all.json")).status == 0
    assert xonar("profiles", "forget", "3f2").status == 0
    # As it was taken in before tables had the date of long ago.
    bare = replace(measured, code_version=None, framework=None, steps=0)
    store.ingest_profile("a2", bare, Recipe(flow="digits", entrypoint=None, task="train"), 9000.0)
    ended = xonar("profiles", "import", str(tmp_path / "all.json"))
    assert "1 profile was taken in" in ended.output
    assert store.profiles_for("3f2a9c") == {"V100": measured}


def test_a_table_has_no_date(xonar, tmp_path) -> None:
    header = "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
    (tmp_path / "all.csv").write_text(header + "kind,V100,10,10,,5\n")
    assert xonar("profiles", "import", str(tmp_path / "all.csv")).status == 0
    assert "published -" in xonar("profiles", "show", "kind").words


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("x.json", "[{", "line 1: is no JSON"),
        ("x.json", "{}", "line 1: must begin a list of profiles"),
        ("x.json", '{"step_seconds": 1}', "it lacks active_fraction, peak_memory_mib"),
        ("x.json", '[{"key": "a"}]', "entry 1 of the list is no profile"),
        ("x.json", '[{"key": "a", "device_model": "V100"}]', "(recipe is missing)"),
        ("x.csv", "training\nx\n", "column 'gpu_model' is missing from the header"),
    ],
)
def test_what_is_no_export_is_named(xonar, store, tmp_path, name, text, complaint) -> None:
    (tmp_path / name).write_text(text)
    ended = xonar("profiles", "import", str(tmp_path / name))
    assert ended.status == 1
    assert complaint in ended.errors


def test_a_file_that_is_missing_is_asked_for_by_its_format(xonar, store, tmp_path) -> None:
    for name, expected in (("no.json", "a readable JSON file."), ("no.csv", "a readable CSV file")):
        assert expected in xonar("profiles", "import", str(tmp_path / name)).errors


def test_an_unknown_kind_cannot_be_forgotten(xonar, profiled) -> None:
    assert "No profile has the key 'zzz'" in xonar("profiles", "forget", "zzz").errors
