from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.cli.demo.building import result
from xonar_prefect.cli.demo import performance, trainings
from xonar_prefect.cli.demo.devices import DemoDevices
from xonar_prefect.cli.demo.performance import Options
from xonar_prefect.cli.demo.report import QueueResult


@dataclass
class FakeDemonstration:
    """Notes which queues were run, and returns made-up results."""

    average_jct_s: float | None = 60.0
    runs: list[tuple[str, str, int]] = field(default_factory=list)
    console: Console = field(default_factory=lambda: Console(file=StringIO(), width=100))
    devices: DemoDevices = field(
        default_factory=lambda: DemoDevices(kind="cpu", model="made up", count=2)
    )
    server: Any = field(
        default_factory=lambda: SimpleNamespace(
            runs_url="http://127.0.0.1:1/v2/runs", child=SimpleNamespace(require_alive=_interrupt)
        )
    )

    def run(
        self, queue: tuple[trainings.QueuedTraining, ...], *, policy: str, label: str
    ) -> QueueResult:
        self.runs.append((label, policy, len(queue)))
        return result(self.average_jct_s, *(training.name for training in queue))

    @property
    def output(self) -> str:
        return " ".join(self.console.file.getvalue().split())  # type: ignore[attr-defined]


def _interrupt() -> None:
    raise KeyboardInterrupt


def _perform(demonstration: FakeDemonstration, **options: Any) -> int:
    return performance._perform(demonstration, "lucid", Options(**options))  # type: ignore[arg-type]


def test_plain_demonstration_runs_one_queue_of_at_least_eight() -> None:
    demonstration = FakeDemonstration()

    assert _perform(demonstration) == 0
    assert demonstration.runs == [("demo", "lucid", 10)]
    assert "http://127.0.0.1:1/v2/runs" in demonstration.output
    assert "xonar demo --keep" in demonstration.output


def test_training_that_did_not_complete_gives_exit_status_one() -> None:
    assert _perform(FakeDemonstration(average_jct_s=None)) == 1


def test_comparison_profiles_first_and_says_so_then_takes_turns() -> None:
    demonstration = FakeDemonstration()

    assert _perform(demonstration, repeats=2, queue_size=9) == 0
    assert demonstration.runs == [
        ("profiling", "serial", 4),
        ("ours-1", "lucid", 9),
        ("serial-1", "serial", 9),
        ("parallel-1", "parallel", 9),
        ("serial-2", "serial", 9),
        ("parallel-2", "parallel", 9),
        ("ours-2", "lucid", 9),
    ]
    assert "every kind is profiled once, alone on its device; this does not count" in (
        demonstration.output
    )


def test_looking_whether_the_result_can_be_written_leaves_no_file(tmp_path: Path) -> None:
    performance._require_writable(str(tmp_path / "result.json"))

    assert not (tmp_path / "result.json").exists()


def test_result_is_written_to_the_file(tmp_path: Path) -> None:
    _perform(FakeDemonstration(), json=str(tmp_path / "result.json"))

    data = json.loads((tmp_path / "result.json").read_text())
    assert data["average_jct_s"] == 60.0
    assert len(data["trainings"]) == 10


def test_result_on_standard_output_is_json_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _perform(FakeDemonstration(), json="-", repeats=1)

    assert set(json.loads(capsys.readouterr().out)) >= {"trainings", "serial", "parallel"}


def test_kept_server_ends_with_ctrl_c_as_with_success() -> None:
    demonstration = FakeDemonstration()

    assert _perform(demonstration, keep=True) == 0
    assert "until you press Ctrl-C" in demonstration.output
