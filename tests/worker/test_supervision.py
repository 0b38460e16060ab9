"""From launch to free slot, with real launchers and a real server, looked at by hand."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Completed, Running

from tests.worker.conftest import Pool, kill
from tests.worker.waiting import eventually
from xonar_prefect.core.decisions import ReasonCode, Release
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.run_directory import Placement, Status
from xonar_prefect.store import Store
from xonar_prefect.worker import labels, memory_complaints
from xonar_prefect.worker.claims import AWAITING_GPU, Claims
from xonar_prefect.worker.concluding import Concluding
from xonar_prefect.worker.launching import Launch, start
from xonar_prefect.worker.processes import ProcessTrees, boot_id, send_signal, started_ticks
from xonar_prefect.worker.requeueing import Requeueing
from xonar_prefect.worker.slots import Slot, Slots
from xonar_prefect.worker.stopping import Stopping
from xonar_prefect.worker.supervision import Supervision

pytestmark = pytest.mark.server


class FakeLearning:
    """Takes profiles and lessons in, or fails to."""

    def __init__(self) -> None:
        self.fails = False
        self.joint: list[bool] = []
        self.observed: list[str] = []

    async def read_profiles(self, slot: Slot, *, joint: bool) -> int:
        if self.fails:
            raise StoreUnusableError("sqlite:///store.db", "the disk is full")
        self.joint.append(joint)
        return 1

    async def observe(self, slot: Slot) -> None:
        self.observed.append(slot.entry.name)
        if self.fails:
            raise StoreUnusableError("sqlite:///store.db", "the disk is full")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def slots(store: Store) -> Iterator[Slots]:
    slots = Slots(store, "one", time.time)
    yield slots
    kill(slots)


@pytest.fixture
def learning() -> FakeLearning:
    return FakeLearning()


@pytest.fixture
def profiled() -> list[str]:
    return []


@pytest.fixture
def supervision(
    pool: Pool, store: Store, slots: Slots, learning: FakeLearning, profiled: list[str]
) -> Supervision:
    async def on_profile(slot: Slot) -> None:
        profiled.append(slot.entry.name)

    claims = Claims(pool.client, "one")

    async def max_requeues_of(_flow_run: FlowRun) -> int:
        return 0

    requeueing = Requeueing(
        pool.client, claims, store, clock=time.time, max_requeues_of=max_requeues_of
    )
    stopping = Stopping(pool.client, slots, clock=time.time, grace_seconds=1.0, linger_seconds=0.5)
    return Supervision(
        slots,
        learning,  # type: ignore[arg-type]
        Concluding(pool.client, claims, requeueing, slots, limits=Limits()),
        stopping,
        clock=time.time,
        stop_grace_seconds=1.0,
        on_profile=on_profile,
    )


async def no_devices() -> Sequence[DeviceReading]:
    return ()


Launching = Callable[..., Awaitable[tuple[FlowRun, Slot]]]


@pytest.fixture
def launch(pool: Pool, slots: Slots, tmp_path: Path) -> Launching:
    async def launch(command: str, name: str = "train") -> tuple[FlowRun, Slot]:
        run = await pool.submit(name=name)
        await pool.client.set_flow_run_state(run.id, Running(), force=True)
        release = Release(
            training=Training(run_id=str(run.id), name=name, submitted_at_s=0.0),
            devices=("cpu-0",),
            code=ReasonCode.FIRST_ON_DEVICE,
            reason="It is first.",
        )
        slot = await slots.reserve(release, "core", tmp_path / "runs")
        slot.process = await start(
            Launch(
                run_directory=slot.run_directory,
                placement=Placement(run_id=str(run.id)),
                command=command,
                environment={},
                device_environment={},
                working_directory=None,
                processors=None,
            )
        )
        await slots.advance(
            slot,
            state=SlotState.RUNNING,
            launcher_pid=slot.process.pid,
            launcher_started_ticks=started_ticks(slot.process.pid),
            boot_id=boot_id(),
        )
        return run, slot

    return launch


def report(slot: Slot, **values: Any) -> None:
    slot.run_directory.write(Status(**{"phase": "training", **values}))


async def freed(supervision: Supervision, slot: Slot) -> None:
    async def looked() -> bool:
        await supervision.look(no_devices)
        await supervision.attend()
        return slot.freed.is_set()

    await eventually(looked)


async def test_a_running_training_keeps_its_slot(
    supervision: Supervision, launch: Launching, slots: Slots
) -> None:
    _, slot = await launch("sleep 600")
    assert not await supervision.look(no_devices)
    assert slot.entry.state is SlotState.RUNNING
    await eventually(lambda: _pids(slot) >= 2)


def _pids(slot: Slot) -> int:
    return len(ProcessTrees().scan().get(slot.entry.run_directory, []))


async def test_what_a_command_left_behind_before_anybody_looked_is_ended_with_its_slot(
    supervision: Supervision, launch: Launching, tmp_path: Path
) -> None:
    pid_file = tmp_path / "left"
    _, slot = await launch(
        f'sh -c \'setsid sh -c "echo \\$\\$ > {pid_file}; exec sleep 600" & '
        f"while ! test -s {pid_file}; do :; done'"
    )
    await eventually(lambda: slot.exit)
    await freed(supervision, slot)
    assert started_ticks(int(pid_file.read_text())) is None
    assert slot.process is not None
    assert slot.process.returncode == 0  # reaped


async def test_a_launcher_that_is_killed_does_not_free_the_slot_of_its_training(
    supervision: Supervision, launch: Launching, pool: Pool
) -> None:
    run, slot = await launch("sleep 600")
    await eventually(lambda: _pids(slot) >= 2)
    assert slot.process is not None
    slot.process.kill()
    slot.process.wait()
    await supervision.look(no_devices)
    assert slot.entry.state is SlotState.RUNNING
    send_signal(slot.pids, signal.SIGKILL)
    await freed(supervision, slot)
    state = (await pool.read(run)).state
    assert state is not None
    assert state.message == "The training's processes disappeared without an exit code."


async def test_what_cannot_be_learnt_costs_neither_slot_nor_others(
    supervision: Supervision,
    launch: Launching,
    learning: FakeLearning,
    caplog: pytest.LogCaptureFixture,
) -> None:
    learning.fails = True
    _, first = await launch("true", "first")
    _, second = await launch("true", "second")
    report(first, profiles_published=1)
    await eventually(lambda: first.exit and second.exit)
    for slot in (first, second):
        await freed(supervision, slot)
    assert "The profile of first cannot be read yet: The store" in caplog.text
    assert "What second taught about sharing is lost" in caplog.text


async def test_a_profile_that_could_not_be_read_is_read_later(
    supervision: Supervision, launch: Launching, learning: FakeLearning, profiled: list[str]
) -> None:
    learning.fails = True
    _, slot = await launch("sleep 600")
    report(slot, profiles_published=1)
    assert not await supervision.look(no_devices)
    learning.fails = False
    assert await supervision.look(no_devices)
    assert profiled == ["train"]


async def test_a_new_profile_is_read_once_and_told_as_joint_beside_a_partner(
    supervision: Supervision, launch: Launching, learning: FakeLearning, profiled: list[str]
) -> None:
    _, alone = await launch("sleep 600", "alone")
    report(alone, profiles_published=1)
    assert await supervision.look(no_devices)
    assert not await supervision.look(no_devices)
    _, beside = await launch("sleep 600", "beside")
    report(beside, profiles_published=1)
    assert await supervision.look(no_devices)
    assert learning.joint == [False, True]
    assert profiled == ["alone", "beside"]


async def test_what_is_published_again_beside_a_partner_is_no_figure_of_its_own(
    supervision: Supervision, launch: Launching, learning: FakeLearning
) -> None:
    _, first = await launch("sleep 600", "first")
    report(first, profiles_published=1)
    assert await supervision.look(no_devices)
    await launch("sleep 600", "partner")
    report(first, profiles_published=2)
    assert await supervision.look(no_devices)
    assert learning.joint == [False, True]
    assert not first.measured_beside_partner


async def test_steps_beside_a_partner_that_has_ended_are_not_steps_beside_it(
    supervision: Supervision, launch: Launching
) -> None:
    _, slot = await launch("sleep 600", "stays")
    _, partner = await launch("sh -c 'trap \"\" TERM; sleep 600 & exit 1'", "crashes")
    report(partner, steps_done=5, stepping_seconds=0.5)  # its last word
    await eventually(lambda: partner.exit)
    for steps in (10, 20, 30):
        report(slot, steps_done=steps, stepping_seconds=steps / 10)
        await supervision.look(no_devices)
    assert partner.entry.state is SlotState.DRAINING
    assert slot.meter.co_runs == ()


async def test_a_slot_is_not_free_while_a_device_still_has_its_memory(
    supervision: Supervision, launch: Launching, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    _, slot = await launch(f"sh -c 'read line < {gate}'")
    await eventually(lambda: _pids(slot) >= 2)
    held: dict[int, int] = {}

    async def devices() -> Sequence[DeviceReading]:
        return (
            DeviceReading(id="cpu-0", index=0, model="core", memory_mib=8000, used_by_pid=held),
        )

    await supervision.look(devices)
    held.update(dict.fromkeys(slot.pids, 300))
    gate.write_text("go\n")
    await eventually(lambda: slot.exit and not _pids(slot))
    for _ in range(3):
        await supervision.look(devices)
        await supervision.attend()
    assert slot.entry.state is SlotState.DRAINING
    assert slot.concluded
    assert not slot.vacated
    held.clear()
    assert await supervision.look(devices)
    assert slot.vacated
    await supervision.attend()
    assert slot.freed.is_set()


async def test_devices_are_free_before_the_server_is_told_how_their_training_ended(
    supervision: Supervision, launch: Launching, slots: Slots, pool: Pool
) -> None:
    run, slot = await launch("false")
    await eventually(lambda: slot.exit)

    async def vacated() -> bool:
        return await supervision.look(no_devices) and slot.vacated

    await eventually(vacated)
    assert await pool.state(run) == "Running"
    assert (slots.holding, len(slots), slots.partners(slot)) == ((), 1, ())
    assert await supervision.attend()
    assert await pool.state(run) == "Crashed"
    assert len(slots) == 0


async def test_a_broken_report_of_one_training_does_not_hold_up_another(
    supervision: Supervision, launch: Launching
) -> None:
    _, broken = await launch("sleep 600", "broken")
    _, fine = await launch("true", "fine")
    (broken.run_directory.path / "status.json").write_text(json.dumps([1, 2]))
    await freed(supervision, fine)


async def test_what_lingers_after_its_run_was_over_is_ended_and_the_run_stays_completed(
    supervision: Supervision, launch: Launching, pool: Pool
) -> None:
    run, slot = await launch("sleep 600")
    await pool.client.set_flow_run_state(run.id, Completed(), force=True)
    await freed(supervision, slot)
    assert await pool.state(run) == "Completed"


CLEARED = (
    "import os, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "for number in (0, 1, 2): os.close(number)\n"
    "os.execve('/bin/sleep', ['sleep', '600'], {})\n"
)


async def test_a_cancel_ends_children_in_other_sessions_and_with_a_cleared_environment(
    supervision: Supervision, launch: Launching, pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "daemon.py").write_text(CLEARED)
    command = f"{sys.executable} -S {tmp_path / 'daemon.py'}"
    run, slot = await launch(f"sh -c '{command}; env -i setsid sleep 600 & sleep 600'")

    async def all_are_there() -> bool:
        await supervision.look(no_devices)
        return len(slot.pids) >= 5  # launcher, shell, its sleep, and the two that hid

    await eventually(all_are_there)
    pids = list(slot.pids)
    await pool.client.set_flow_run_state(run.id, Cancelled(), force=True)
    await freed(supervision, slot)
    assert [started_ticks(pid) for pid in pids] == [None] * len(pids)
    assert slot.exit is not None  # the launcher was left to tell how it ended


async def test_an_endless_complaint_about_memory_ends_the_training_which_then_runs_alone(
    supervision: Supervision, launch: Launching, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_complaints, "LEAST_SECONDS", 0.2)
    run, slot = await launch("sh -c 'while :; do echo CUDA_ERROR_OUT_OF_MEMORY; sleep 0.01; done'")
    await freed(supervision, slot)
    again = await pool.read(run)
    assert again.state_name == AWAITING_GPU
    assert "asked for device memory without end (CUDA_ERROR_OUT_OF_MEMORY)" in str(
        again.state and again.state.message
    )
    assert again.labels[labels.ALONE]
