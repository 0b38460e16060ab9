"""Worker and training read what the other has written, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from xonar_prefect.core.models import Profile
from xonar_prefect.run_directory import (
    RUN_DIRECTORY_VARIABLE,
    Exit,
    Placement,
    RunDirectory,
    Status,
)

PLACEMENT = Placement(
    run_id="r1",
    devices=("cpu-0", "cpu-1"),
    device_kind="cpu",
    device_model="core",
    gpus=2,
    memory_request_mib=900,
    shared=True,
    known_profiles={
        "k": Profile(
            key="k", device_model="core", active_fraction=0.5, step_seconds_interval=(0.1, 0.2)
        )
    },
)
STATUS = Status(phase="training", steps_done=7, steps_total=9, stepping_seconds=1.5)
EXIT = Exit(exit_code=-9, ended_at_s=12.5)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_what_is_written_is_read_again(run: RunDirectory) -> None:
    for value in (PLACEMENT, STATUS, EXIT):
        run.write(value)
    assert run.read_placement() == PLACEMENT
    assert run.read_status() == STATUS
    assert run.read_exit() == EXIT


def test_what_is_not_there_is_none(run: RunDirectory) -> None:
    assert run.read_placement() is None
    assert run.read_status() is None
    assert run.read_exit() is None


def test_half_a_file_is_none(run: RunDirectory) -> None:
    (run.path / "status.json").write_text('{"phase": "trai')
    assert run.read_status() is None


def test_a_field_of_a_newer_version_is_ignored(run: RunDirectory) -> None:
    (run.path / "exit.json").write_text(json.dumps({"exit_code": 0, "ended_at_s": 1, "host": "a"}))
    assert run.read_exit() == Exit(exit_code=0, ended_at_s=1)


def test_replacing_leaves_no_other_file_behind(run: RunDirectory) -> None:
    run.write(STATUS)
    run.write(STATUS)
    assert [path.name for path in run.path.iterdir()] == ["status.json"]


def test_a_process_finds_the_directory_it_was_launched_with(tmp_path: Path) -> None:
    launched = {RUN_DIRECTORY_VARIABLE: str(tmp_path)}
    assert RunDirectory.from_environment(launched) == RunDirectory(tmp_path)
    assert RunDirectory.from_environment({}) is None


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(run: RunDirectory) -> None:
    run.write(STATUS)
    partial = run.path / f"status.{os.getpid()}.tmp"
    partial.symlink_to("/dev/full")  # every write to it meets a full disk
    with pytest.raises(OSError, match="No space left"):
        run.write(Status(phase="done", steps_done=9))
    assert run.read_status() == STATUS
    assert [path.name for path in run.path.iterdir()] == ["status.json"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{"])
def test_what_is_no_text_of_ours_is_none(run: RunDirectory, content: bytes) -> None:
    (run.path / "placement.json").write_bytes(content)
    assert run.read_placement() is None
