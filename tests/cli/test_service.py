"""The systemd unit: what it promises to systemd, and what it keeps to itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xonar_prefect.cli import main
from xonar_prefect.cli.service import unit

ENVIRONMENT = {
    "PREFECT_API_URL": "https://prefect.example/api",
    "PREFECT_API_KEY": "pnu_secret",
    "PREFECT_API_AUTH_STRING": "admin:secret",
    "XONAR_HOME": "/data/xonar home",
    "XONAR_STORE_URL": "postgresql://xonar:secret@db/xonar",
    "XONAR_RUN_DIR": "/somewhere",
    "HOME": "/home/ada",
}


def printed(*options: str, **environment: str) -> str:
    given = {**ENVIRONMENT, **environment}
    return unit(options, given, interpreter="/opt/venv/bin/python", user="ada")


def test_trainings_outlive_the_worker_and_the_worker_comes_back() -> None:
    lines = printed("--pool", "gpus").splitlines()
    assert {"KillMode=process", "Restart=on-failure", "OOMPolicy=continue", "User=ada"} <= {*lines}


def test_it_starts_the_program_of_this_environment_with_these_options() -> None:
    line = "ExecStart=/opt/venv/bin/xonar worker start --pool gpus --name box-1"
    assert line in printed("--pool", "gpus", "--name", "box-1").splitlines()


def test_options_reach_the_worker_as_they_are() -> None:
    assert r'--name "50%% of $$HOME \"x\""' in printed("--name", '50% of $HOME "x"')


def test_settings_are_kept_and_secrets_are_not() -> None:
    text = printed("--pool", "gpus")
    assert "Environment=PREFECT_API_URL=https://prefect.example/api\n" in text
    assert 'Environment="XONAR_HOME=/data/xonar home"\n' in text
    assert "secret" not in text
    assert "XONAR_RUN_DIR" not in text
    assert "EnvironmentFile=-/etc/xonar/worker.env" in text


def test_an_address_with_a_password_is_a_secret() -> None:
    assert "hidden" not in printed(PREFECT_API_URL="https://ada:hidden@prefect.example/api")


def test_the_command_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XONAR_POLICY", "parallel")
    status = main(["worker", "install", "--print", "--pool", "gpus", "--stop-trainings"])
    out = capsys.readouterr().out
    assert status == 0
    program = Path(sys.executable).with_name("xonar")
    assert f"ExecStart={program} worker start --pool gpus --stop-trainings\n" in out
    assert "Environment=XONAR_POLICY=parallel\n" in out


def test_it_is_only_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "install", "--pool", "gpus"]) == 1
    assert "add --print" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--pol", "gpus"], []])
def test_options_that_the_worker_does_not_take_are_said_at_once(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "install", "--print", *wrong]) == 2
    assert "ExecStart" not in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_it(tmp_path: Path) -> None:
    file = tmp_path / "xonar-worker.service"
    program = tmp_path / "bin" / "xonar"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    interpreter = str(program.with_name("python"))
    file.write_text(
        unit(["--pool", "gpus", "--name", "a b"], ENVIRONMENT, interpreter=interpreter, user="root")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if "xonar-worker" in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
