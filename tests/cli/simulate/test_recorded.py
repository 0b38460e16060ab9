from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xonar
from xonar_prefect.cli.simulate.recorded import measured_startup
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store


def ended(store: Store, directory: Path, name: str, startup_s: float, **values: object) -> None:
    """Leave the traces of a run that trained for 20 s after so long a start-up."""
    (directory / name).mkdir()
    RunDirectory(directory / name).write(
        Status(phase="done", steps_done=100, stepping_seconds=20.0)
    )
    entry: dict[str, object] = {
        "run_id": name,
        "name": name,
        "worker": "w",
        "state": SlotState.ENDED,
        "devices": ("GPU-1",),
        "device_model": "V100",
        "run_directory": str(directory / name),
        "reserved_at_s": 1000.0,
        "ended_at_s": 1020.0 + startup_s,
        "exit_code": 0,
        **values,
    }
    store.record(LedgerEntry(**entry))  # type: ignore[arg-type]


@pytest.fixture
def history(store: Store, tmp_path: Path) -> None:
    for name, startup_s in (("a", 4.0), ("b", 6.0), ("c", 60.0)):
        ended(store, tmp_path, name, startup_s)
    ended(store, tmp_path, "failed", 1.0, exit_code=1)
    ended(store, tmp_path, "still running", 1.0, exit_code=None, ended_at_s=None)
    ended(store, tmp_path, "elsewhere", 1.0, device_model="A100")
    ended(store, tmp_path, "on no device", 1.0, devices=())


@pytest.mark.usefixtures("history")
def test_the_median_of_those_that_ended_well_on_these_models_counts() -> None:
    found = measured_startup({"V100"})
    assert found.seconds == pytest.approx(6)
    assert found.note is not None
    assert found.note.startswith(
        "Starting up and ending takes 6.0 s: the median of what 3 trainings on V100"
    )


@pytest.mark.usefixtures("history")
def test_a_simulation_of_files_counts_it(xonar: Xonar, arguments: list[str]) -> None:
    found = xonar(*arguments, "--policy", "serial", "--json").json
    assert found["startup_s"] == pytest.approx(6)
    assert found["policies"]["serial"]["makespan_s"] == pytest.approx(250 + 3 * 6)
    assert any(note.startswith("Starting up and ending takes 6.0 s") for note in found["notes"])


@pytest.mark.usefixtures("history")
def test_on_another_model_none_was_measured_and_that_is_said() -> None:
    found = measured_startup({"H100"})
    assert found.seconds == 0
    assert found.note == (
        "No time is counted for starting a training up: none was measured on H100; --startup "
        "SECONDS does."
    )


def test_a_training_without_a_record_of_steps_says_nothing(store: Store, tmp_path: Path) -> None:
    ended(store, tmp_path, "a", 4.0, run_directory=str(tmp_path / "removed"))
    assert measured_startup({"V100"}).seconds == 0


def test_a_store_that_was_never_written_is_not_made(home: Path) -> None:
    assert measured_startup({"V100"}).seconds == 0
    assert not home.exists()


def test_a_store_that_cannot_be_read_stops_no_simulation(
    xonar: Xonar, arguments: list[str], home: Path
) -> None:
    home.mkdir()
    (home / "store.db").write_text("This is no database. " * 100, encoding="utf-8")
    shown = xonar(*arguments)
    assert shown.status == 0
    assert "what was measured cannot be read" in shown.words
    assert "store.db" in shown.words
