from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store


def release(directory: Path, name: str, **changes: object) -> LedgerEntry:
    directory.mkdir()
    values = {
        "run_id": name,
        "name": name,
        "worker": "w",
        "state": SlotState.RUNNING,
        "devices": ("cpu-0",),
        "request_mib": 700,
        "run_directory": str(directory),
        "reserved_at_s": 1.0,
    }
    return LedgerEntry(**{**values, **changes})


@pytest.fixture
def pair(store: Store, tmp_path: Path) -> None:
    store.record(release(tmp_path / "a", "wise-owl"))
    store.record(release(tmp_path / "b", "sly-fox", reserved_at_s=2.0, request_mib=None))
    store.record(release(tmp_path / "c", "old-cat", state=SlotState.ENDED))
    status = Status(phase="training", steps_done=30, steps_total=100, peak_memory_mib=512)
    RunDirectory(tmp_path / "a").write(status)


def test_device_shows_its_trainings_and_their_progress(xonar, pair) -> None:
    words = xonar("gpus").words
    assert "wise-owl 700 MiB 30/100" in words
    assert "sly-fox all -" in words
    assert "old-cat" not in words


def test_json_has_partners_and_progress(xonar, pair) -> None:
    (core,) = xonar("gpus", "--json").json
    assert core["id"] == "cpu-0"
    assert core["memory_mib"] > 0
    first, second = core["trainings"]
    assert first["partners"] == ["sly-fox"]
    assert (first["steps_done"], first["steps_total"], first["peak_memory_mib"]) == (30, 100, 512)
    assert (second["steps_done"], second["request_mib"]) == (None, None)


def test_idle_device_is_shown(xonar) -> None:
    (core,) = xonar("gpus", "--json").json
    assert core["trainings"] == []


def test_no_gpu_where_gpus_are_asked_for_is_said_in_a_sentence(xonar, monkeypatch) -> None:
    monkeypatch.setenv("XONAR_DEVICES", "nvidia")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    ended = xonar("gpus")
    assert ended.status == 1
    assert "No device was found" in ended.errors
