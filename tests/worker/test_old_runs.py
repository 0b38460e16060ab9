"""Run directories of ended runs go in time; nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tests.disks import mounted
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, Exit, RunDirectory
from xonar_prefect.store import Store
from xonar_prefect.worker.old_runs import OldRunDirectories
from xonar_prefect.worker.processes import ProcessTrees

NOW = 10_000_000.0
KEEP = 1000.0
OLD = NOW - KEEP - 1
YOUNG = NOW - KEEP + 1


@dataclass
class Home:
    """The run directories of a worker's home, and what the server says of their runs."""

    runs: Path
    store: Store
    unfinished: set[str] = field(default_factory=set)

    async def ask(self, run_ids: Collection[str]) -> frozenset[str]:
        return frozenset(self.unfinished.intersection(run_ids))

    def add(self, released_at_s: float) -> Path:
        """Make a run directory with all that a run leaves."""
        path = self.runs / f"{uuid4()}-{int(released_at_s * 1000)}"
        (path / "work" / "checkpoints").mkdir(parents=True)
        (path / "work" / "checkpoints" / "weights.bin").write_bytes(bytes(100))
        (path / "output.log").write_text("epoch 1\n")
        return path

    def release(
        self, path: Path, state: SlotState, ended_at_s: float | None, released_at_s: float = OLD
    ) -> None:
        """Write the release of this directory to the ledger."""
        self.store.record(
            LedgerEntry(
                run_id=path.name[:36],
                name="r",
                worker="one",
                state=state,
                run_directory=str(path),
                reserved_at_s=released_at_s,
                ended_at_s=ended_at_s,
            )
        )

    async def clean(self) -> set[str]:
        """Do all there is to do; return what is left."""
        chore = OldRunDirectories(
            self.runs, self.store, self.ask, clock=lambda: NOW, keep_seconds=KEEP
        )
        steps = 0
        while await chore.step():
            steps += 1
            assert steps < 50
        return {path.name for path in self.runs.iterdir()}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    (tmp_path / "runs").mkdir()
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield Home(tmp_path / "runs", store)


async def test_what_ended_long_ago_goes_and_what_ended_lately_stays(home: Home) -> None:
    old, long_running = home.add(OLD), home.add(OLD)
    home.release(old, SlotState.ENDED, OLD)
    home.release(long_running, SlotState.ENDED, YOUNG)
    young = home.add(YOUNG)
    assert await home.clean() == {long_running.name, young.name}


@pytest.mark.parametrize("state", [SlotState.RESERVED, SlotState.RUNNING, SlotState.DRAINING])
async def test_what_has_a_slot_stays_however_old(home: Home, state: SlotState) -> None:
    path = home.add(OLD)
    home.release(path, state, None)
    assert await home.clean() == {path.name}


async def test_what_the_server_calls_unfinished_stays(home: Home) -> None:
    path = home.add(OLD)
    home.release(path, SlotState.ENDED, OLD)
    home.unfinished.add(path.name[:36])
    assert await home.clean() == {path.name}


async def test_each_release_of_a_run_has_its_own_directory_and_end(home: Home) -> None:
    first = home.add(OLD)
    second = self_named(home, first, YOUNG)
    home.release(first, SlotState.ENDED, OLD, OLD)
    home.release(second, SlotState.RUNNING, None, YOUNG)
    assert await home.clean() == {second.name}


def self_named(home: Home, first: Path, released_at_s: float) -> Path:
    path = home.runs / f"{first.name[:36]}-{int(released_at_s * 1000)}"
    path.mkdir()
    return path


async def test_without_the_ledger_the_exit_file_tells_the_end_and_else_the_name(
    home: Home,
) -> None:
    ended_lately, ended, crashed, torn = (home.add(OLD) for _ in range(4))
    RunDirectory(ended_lately).write(Exit(exit_code=0, ended_at_s=YOUNG))
    RunDirectory(ended).write(Exit(exit_code=0, ended_at_s=OLD))
    (torn / "exit.json").write_text(json.dumps(["what", "is", "this"]))
    assert crashed.exists()
    assert await home.clean() == {ended_lately.name}


@pytest.fixture
def living() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Start a process that bears a run directory."""
    started: list[subprocess.Popen[bytes]] = []

    def living(path: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, RUN_DIRECTORY_VARIABLE: str(path)}
        started.append(subprocess.Popen(["sleep", "600"], env=environment))
        return started[-1]

    yield living
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def test_what_lives_stays_whatever_the_ledger_says(
    home: Home, living: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    lost, said_to_have_ended = home.add(OLD), home.add(OLD)
    home.release(said_to_have_ended, SlotState.ENDED, OLD)
    processes = [living(lost), living(said_to_have_ended)]
    await eventually(lambda: {str(lost), str(said_to_have_ended)} <= ProcessTrees().scan().keys())
    assert await home.clean() == {lost.name, said_to_have_ended.name}
    for process in processes:
        process.kill()
        process.wait()
    assert await home.clean() == set()


async def test_strange_names_files_and_links_are_left_alone(home: Home, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "thesis.tex").write_text("years of work")
    (home.runs / "notes").mkdir()
    (home.runs / f"{uuid4()}-soon").mkdir()
    (home.runs / f"{uuid4()}-{int(OLD * 1000)}").symlink_to(treasure)
    (home.runs / f"{uuid4()}-{int(OLD * 1000)}").write_text("a file")
    (home.runs / f"{uuid4()}-{10**40}").mkdir()
    before = {path.name for path in home.runs.iterdir()}
    assert await home.clean() == before
    assert (treasure / "thesis.tex").exists()


async def test_links_in_a_run_directory_are_removed_and_not_followed(
    home: Home, tmp_path: Path
) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "thesis.tex").write_text("years of work")
    path = home.add(OLD)
    (path / "work" / "data").symlink_to(treasure)
    (path / "work" / "gone").symlink_to(tmp_path / "gone")
    os.mkfifo(path / "work" / "pipe")
    assert await home.clean() == set()
    assert (treasure / "thesis.tex").exists()


async def test_what_is_mounted_in_a_run_directory_is_not_touched(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    path = home.add(OLD)
    with mounted(path / "work" / "bucket") as bucket:
        (bucket / "thesis.tex").write_text("years of work")
        assert await home.clean() == {path.name}
        assert (bucket / "thesis.tex").exists()
        assert f"something is mounted in it at {bucket}" in caplog.text
    assert await home.clean() == set()


async def test_what_cannot_be_removed_is_said_and_keeps_nothing_else(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = home.add(OLD - 1)
    home.add(OLD)
    unlink = os.unlink

    def refusing(name: str, *args: object, **options: object) -> None:
        if name == "weights.bin" and (stubborn / "work").exists() and not refused:
            refused.append(name)
            raise PermissionError(13, "Permission denied", name)
        unlink(name, *args, **options)  # type: ignore[arg-type]

    refused: list[str] = []
    monkeypatch.setattr(os, "unlink", refusing)
    assert await home.clean() == {stubborn.name}
    assert f"{stubborn} could not be removed altogether" in caplog.text


async def test_a_home_without_runs_has_nothing_to_remove(home: Home) -> None:
    home.runs.rmdir()
    chore = OldRunDirectories(home.runs, home.store, home.ask, clock=lambda: NOW, keep_seconds=KEEP)
    assert await chore.step() is False
