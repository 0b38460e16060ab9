from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Xonar
from xonar_prefect.cli.demo import trainings
from xonar_prefect.cli.demo.janitor import processes_of

FLOWS = Path(__file__).parents[3] / "flows"


def test_help_has_an_example(xonar: Xonar) -> None:
    assert "xonar demo --compare" in xonar("demo", "--help").words


@pytest.mark.parametrize(
    "wrong", [("--queue-size", "7"), ("--repeat", "0"), ("--port", "0"), ("--devices", "tpu")]
)
def test_wrong_usage_ends_before_anything_starts(xonar: Xonar, wrong: tuple[str, str]) -> None:
    assert xonar("demo", *wrong).status == 2


def test_unknown_policy_is_a_sentence_that_names_those_there_are(xonar: Xonar) -> None:
    ended = xonar("demo", "--policy", "complimentary", "--flows", str(FLOWS))

    assert ended.status == 1
    assert "choose one of adaptive, complementary, " in ended.errors


def test_missing_flows_are_a_sentence(xonar: Xonar, tmp_path: Path) -> None:
    ended = xonar("demo", "--flows", str(tmp_path))

    assert ended.status == 1
    assert "--flows DIRECTORY" in ended.errors


def test_result_that_could_not_be_written_is_noticed_before_the_trainings(
    xonar: Xonar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainings, "_NEEDED", ())

    ended = xonar("demo", "--flows", str(FLOWS), "--json", str(tmp_path / "no" / "result.json"))

    assert ended.status == 1
    assert "choose another file with `--json FILE`" in ended.errors


def test_interruption_is_one_sentence_and_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import sys; from xonar_prefect.cli import main; from xonar_prefect.cli.demo import "
        f"trainings; trainings._NEEDED = (); sys.exit(main(['demo', '--home', {str(tmp_path)!r}, "
        f"'--flows', {str(FLOWS)!r}, '--devices', 'cpu']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DO_NOT_TRACK": "1"},
    ) as demonstration:
        assert demonstration.stdout is not None
        assert demonstration.stderr is not None
        assert "Starting a private Prefect server" in demonstration.stdout.readline()

        demonstration.send_signal(signal.SIGINT)
        rest, errors = demonstration.communicate(timeout=120)

    assert demonstration.returncode == 130
    assert rest.splitlines()[-1] == "Interrupted; ending everything that was started."
    assert errors == ""
    assert not list(processes_of(tmp_path))
