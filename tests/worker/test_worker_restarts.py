"""A worker that is killed or stopped, and the next one of its name."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from tests.worker.conftest import Pool
from tests.worker.programs import program
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.processes import ProcessTrees, send_signal, started_ticks

pytestmark = pytest.mark.server

Ledger = Callable[[FlowRun], tuple[LedgerEntry, ...]]


class Process:
    """A worker in a process of its own, and what it says."""

    def __init__(self, log: Path, *command: str, **environment: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self.popen = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> str:
        # Rich breaks lines where the console ends.
        return " ".join(self.log.read_text().split())

    async def says(self, text: str) -> None:
        await eventually(lambda: text in self.said or self.popen.poll() is not None)
        assert text in self.said

    def end(self, number: signal.Signals) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(120)


Start = Callable[..., Process]


@pytest.fixture
def start(
    pool: Pool, prefect_server: str, settings: XonarSettings, tmp_path: Path
) -> Iterator[Start]:
    """Start `xonar worker start`, or another command, for the pool with the settings."""
    started: list[Process] = []

    def start(*command: str, **environment: str) -> Process:
        given = command or ("xonar", "worker", "start", "--pool", pool.name, "--name", "one")
        own = {f"XONAR_{name.upper()}": str(value) for name, value in settings if value is not None}
        process = Process(
            tmp_path / f"worker-{len(started)}.log",
            *program(given[0]),
            *given[1:],
            **{**own, "PREFECT_API_URL": prefect_server, "COLUMNS": "500", **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.end(signal.SIGKILL)
    for directory, pids in ProcessTrees().scan().items():
        if directory.startswith(str(settings.home)):
            send_signal(pids, signal.SIGKILL)


async def state_is(pool: Pool, run: FlowRun, state: str) -> str:
    async def reached() -> bool:
        return await pool.state(run) == state

    await eventually(reached)
    return str((await pool.read(run)).state.message)  # type: ignore[union-attr]


async def test_what_a_worker_was_killed_with_is_adopted_and_can_be_cancelled_or_starts_again(
    pool: Pool, start: Start, ledger: Ledger, settings: XonarSettings
) -> None:
    first = start()
    lives = await pool.succeed("leave=never-stubborn", "wait=never", gpus=0, name="lives")
    dies = await pool.succeed("wait=gate", max_requeues=1, name="dies")
    for run in (lives, dies):
        await state_is(pool, run, "Running")
    await eventually(lambda: pool.left(lives))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    # The host goes down, as far as one of them can tell.
    (entry,) = ledger(dies)
    send_signal(ProcessTrees().scan()[entry.run_directory], signal.SIGKILL)
    with Store.open(settings.effective_store_url) as store:
        store.record(replace(entry, boot_id="an earlier one"))
    pool.open("gate")

    second = start()
    await second.says("Adopted 'lives', running")
    await pool.client.set_flow_run_state(lives.id, Cancelling())
    await state_is(pool, lives, "Cancelled")
    await eventually(lambda: ledger(lives)[0].state is SlotState.ENDED)
    left = pool.left(lives)
    assert left is not None
    assert started_ticks(left) is None
    await second.says("Requeued (restart 1 of 1): The host was restarted while the training ran.")
    await state_is(pool, dies, "Completed")
    assert len(pool.starts(dies)) == 2
    history = await pool.client.read_flow_run_states(dies.id)
    assert [state.name for state in history if state.is_final()] == ["Completed"]
    assert second.end(signal.SIGTERM) == 0


async def test_a_worker_takes_its_trainings_with_it_if_told_to_and_leaves_at_a_second_signal(
    pool: Pool, start: Start, ledger: Ledger
) -> None:
    command = ("xonar", "worker", "start", "--pool", pool.name, "--name", "one", "--stop-trainings")
    first = start(*command)
    run = await pool.succeed("wait=gate", name="run")
    await state_is(pool, run, "Running")
    assert first.end(signal.SIGTERM) == 0
    await first.says("Its worker was stopped, and its trainings with it.")
    assert "Trainings that end and go back into the queue: 1." in first.said
    assert (await pool.state(run), await pool.code(run)) == ("AwaitingGPU", "PUT_BACK")
    assert ProcessTrees().scan().keys().isdisjoint({ledger(run)[0].run_directory})

    pool.open("gate")
    patient = start(*command, XONAR_STOP_GRACE_SECONDS="600")
    await state_is(pool, run, "Completed")
    assert len(pool.starts(run)) == 2
    deeds = ("stubborn", "state=RUNNING", "wait=second-gate", "state=COMPLETED")
    stubborn = await pool.tiny(*deeds, name="stubborn")
    await state_is(pool, stubborn, "Running")
    patient.popen.send_signal(signal.SIGTERM)
    await patient.says("Stopping 'stubborn'")
    assert patient.popen.poll() is None
    assert patient.end(signal.SIGTERM) == 0
    assert "Trainings that run on: 1;" in patient.said
    assert await pool.state(stubborn) == "Running"
    pool.open("second-gate")
    await state_is(pool, stubborn, "Completed")


async def test_trainings_outlive_killed_and_stopped_workers_and_nothing_runs_twice(
    pool: Pool, start: Start, ledger: Ledger
) -> None:
    first = start()
    running = await pool.succeed("say=old news", "wait=gate", "say=at last", name="running")
    held = await pool.tiny("state=RUNNING", "wait=second-gate", "exit=3", name="held")
    await state_is(pool, running, "Running")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    # The next worker of this name adopts it, does not start it again, and frees its slot.
    second = start()
    await second.says("Adopted 'running', running")
    await state_is(pool, held, "AwaitingGPU")
    (entry,) = ledger(running)
    assert entry.state is SlotState.RUNNING
    pool.open("gate")
    await state_is(pool, running, "Completed")
    await second.says("running | at last")
    assert "old news" not in second.said
    await state_is(pool, held, "Running")
    # Its device was free before it was concluded, which is done beside the next launch.
    await eventually(lambda: ledger(running)[0].state is SlotState.ENDED)

    # A worker that is stopped leaves its trainings alone.
    assert second.end(signal.SIGTERM) == 0
    assert "Trainings that run on: " in second.said
    assert "Traceback" not in second.said
    (entry,) = ledger(held)
    directory = RunDirectory(Path(entry.run_directory))
    assert directory.read_exit() is None

    # What ends while no worker is there is concluded by the next one.
    pool.open("second-gate")
    await eventually(directory.read_exit)
    waiting = await pool.succeed(name="waiting")
    third = start("prefect", "worker", "start", "--pool", pool.name, "--name", "one")
    await third.says("Adopted 'held', ended meanwhile")
    assert "exit code 3" in await state_is(pool, held, "Crashed")
    await state_is(pool, waiting, "Completed")
    assert [len(pool.starts(run)) for run in (running, held, waiting)] == [1, 1, 1]

    # Meanwhile nobody else gets its name or its device.
    same_name = start()
    assert same_name.popen.wait(120) == 1
    assert "'one'" in same_name.said
    other_name = start("xonar", "worker", "start", "--pool", pool.name, "--name", "two")
    assert other_name.popen.wait(120) == 1
    assert "All 1 devices of this host are used by worker 'one' of pool" in other_name.said
    assert "Traceback" not in same_name.said + other_name.said
    assert third.end(signal.SIGTERM) == 0
