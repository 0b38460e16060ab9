"""What lives is added up on the devices where it lives, and an excess is noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.capacity import Occupancy
from tests.faults.diary import Diary
from tests.faults.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def child_pid() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def diary(tmp_path: Path, *notes: dict[str, Any]) -> Diary:
    path = tmp_path / "diary.jsonl"
    defaults = {"at_s": 0.0, "event": "started", "request_mib": 400}
    path.write_text("".join(json.dumps(defaults | note) + "\n" for note in notes))
    diary = Diary(path)
    diary.read_on()
    return diary


def look(journal: Journal, diary: Diary) -> Occupancy:
    occupancy = Occupancy(journal, memory_mib=1000, trainings=2)
    occupancy.look({}, diary)
    return occupancy


def test_more_living_than_a_device_holds_is_an_excess(tmp_path: Path, journal: Journal) -> None:
    here = {"pid": os.getpid(), "devices": ["cpu-0"]}
    occupancy = look(journal, diary(tmp_path, *({"run": run, **here} for run in "abc")))
    assert [event.facts["requests_mib"] for event in journal.of("excess")] == [[400, 400, 400]]
    assert (occupancy.most_trainings, occupancy.highest_mib) == (3, 1200)


def test_a_requeued_run_counts_where_it_lives_now(
    tmp_path: Path, journal: Journal, ended_pid: int
) -> None:
    notes = diary(
        tmp_path,
        {"run": "a", "pid": ended_pid, "devices": ["cpu-1"]},
        {"run": "a", "pid": os.getpid(), "devices": ["cpu-0"]},
        {"run": "b", "pid": os.getpid(), "devices": ["cpu-1"]},
        {"run": "c", "pid": os.getpid(), "devices": ["cpu-1"]},
    )
    assert look(journal, notes).most_trainings == 2
    assert not journal.of("excess")


def test_a_child_left_behind_keeps_its_training_on_the_device_once(
    tmp_path: Path, journal: Journal, ended_pid: int, child_pid: int
) -> None:
    left = {"event": "left", "left_pid": child_pid, "devices": ["cpu-0"]}
    gone = diary(tmp_path, {"run": "a", "pid": ended_pid, **left})
    assert look(journal, gone).most_trainings == 1
    both = diary(tmp_path, {"run": "a", "pid": os.getpid(), **left})
    assert look(journal, both).most_trainings == 1
