"""Exit status, sentences and help are the same for every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xonar_prefect import __version__
from xonar_prefect.cli import gpus
from xonar_prefect.cli.application import application

COMMANDS_WITH_DATA = [
    ("demo",),
    ("doctor",),
    ("gpus",),
    ("pool", "create"),
    ("profile",),
    ("profiles", "list"),
    ("profiles", "show"),
    ("queue",),
    ("simulate",),
]
COMMANDS = [
    *COMMANDS_WITH_DATA,
    ("gpus", "drain"),
    ("gpus", "release"),
    ("profiles", "export"),
    ("profiles", "forget"),
    ("profiles", "import"),
    ("worker", "install"),
    ("worker", "start"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(xonar, command) -> None:
    ended = xonar(*command, "--help")
    assert ended.status == 0
    assert f"Example: xonar {' '.join(command)}" in ended.words


@pytest.mark.parametrize("command", COMMANDS_WITH_DATA, ids=" ".join)
def test_every_command_with_data_prints_json_on_request(xonar, command) -> None:
    assert "--json" in xonar(*command, "--help").output


def test_every_command_is_covered_by_these_tests() -> None:
    app = application()
    known = {
        (name, *inner)
        for name in app
        if not name.startswith("-")
        for inner in [(each,) for each in app[name] if not each.startswith("-")] or [()]
    }
    known |= {(name,) for name in app if not name.startswith("-") and app[name].default_command}
    assert known == set(COMMANDS)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from xonar_prefect.cli import main; main(['queue', '--help']); "
        "heavy = {'prefect', 'sqlalchemy', 'pydantic', 'tensorflow'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_version_is_that_of_the_package(xonar) -> None:
    assert xonar("--version").output.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [("nope",), ("queue", "--nope"), ("pool", "create"), ("profiles", "show"), ("worker", "start")],
)
def test_wrong_usage_ends_with_2_and_says_so_on_standard_error(xonar, arguments) -> None:
    ended = xonar(*arguments)
    assert ended.status == 2
    assert ended.output == ""
    assert "Error" in ended.errors


def test_wrong_setting_ends_with_1_in_one_sentence(xonar, monkeypatch) -> None:
    monkeypatch.setenv("XONAR_DEVICES", "abacus")
    ended = xonar("gpus")
    assert ended.status == 1
    assert ended.output == ""
    assert ended.errors.startswith("xonar: XONAR_DEVICES is 'abacus'")
    assert ended.errors.count("\n") == 1


def test_interrupt_while_commands_are_imported_ends_the_same(xonar, monkeypatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("xonar_prefect.cli.application.application", interrupted)
    ended = xonar("gpus")
    assert (ended.status, ended.output, ended.errors) == (130, "", "")


def test_interrupt_ends_with_130_and_no_traceback(xonar, monkeypatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpus, "local_devices", interrupted)
    ended = xonar("gpus")
    assert (ended.status, ended.output, ended.errors) == (130, "", "")


@pytest.mark.parametrize("command", [("pool", "create", "p"), ("queue",)])
def test_command_without_a_server_address_says_how_to_get_one(xonar, monkeypatch, command) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        ended = xonar(*command)
    assert ended.status == 1
    assert "PREFECT_API_URL is not set" in ended.errors
    assert "`prefect server start`" in ended.errors


def test_command_with_a_dead_server_names_its_address(xonar) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        ended = xonar("queue")
    assert ended.status == 1
    assert "The Prefect server at http://127.0.0.1:1/api does not answer" in ended.errors
    assert ended.errors.count("\n") == 1
