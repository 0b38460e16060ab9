"""Bringing slots and reality together after a restart, with a real server and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Running

from tests.worker.conftest import Pool
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.errors import JobVariableError
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, Exit, Placement, RunDirectory
from xonar_prefect.store import Store
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.processes import boot_id, started_ticks
from xonar_prefect.worker.recovery import Recovery, was_beside_another
from xonar_prefect.worker.slots import Slots

pytestmark = pytest.mark.server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def slots(store: Store) -> Slots:
    return Slots(store, "one", lambda: 100.0)


@pytest.fixture
def claims(pool: Pool) -> Claims:
    return Claims(pool.client, "one")


def known(flow_run: FlowRun) -> Training:
    return Training(run_id=str(flow_run.id), name=flow_run.name, submitted_at_s=0.0, gpus=2)


async def training_of(flow_run: FlowRun) -> Training:
    return known(flow_run)


Recover = Callable[..., Awaitable[None]]


@pytest.fixture
def recover(pool: Pool, claims: Claims, slots: Slots, store: Store) -> Recover:
    async def recover(
        training_of: Callable[[FlowRun], Awaitable[Training]] = training_of,
    ) -> None:
        await Recovery(
            pool.client,
            claims,
            slots,
            store,
            worker="one",
            pool=pool.name,
            training_of=training_of,
        ).run()

    return recover


@pytest.fixture
def entry(store: Store, tmp_path: Path) -> Callable[..., LedgerEntry]:
    """Write down what an earlier life of the worker knew of a run."""

    def entry(run: FlowRun, **changes: Any) -> LedgerEntry:
        plain = LedgerEntry(
            run_id=str(run.id),
            name=run.name,
            worker="one",
            state=SlotState.RESERVED,
            devices=("cpu-0",),
            run_directory=str(tmp_path / str(run.id)),
            reserved_at_s=1.0,
        )
        written = replace(plain, **changes)
        store.record(written)
        return written

    return entry


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Callable[[FlowRun], int]]:
    """Start a process that bears the run directory of a run."""
    started = []

    def living(run: FlowRun) -> int:
        directory = tmp_path / str(run.id)
        directory.mkdir()
        process = subprocess.Popen(
            ["sleep", "600"], env={**os.environ, RUN_DIRECTORY_VARIABLE: str(directory)}
        )
        started.append(process)
        return process.pid

    yield living
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()


def launched(pid: int) -> dict[str, Any]:
    return {
        "state": SlotState.RUNNING,
        "launcher_pid": pid,
        "launcher_started_ticks": started_ticks(pid) or 1,
        "boot_id": boot_id(),
    }


async def test_what_lives_is_adopted(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any
) -> None:
    run = await pool.submit()
    pid = living(run)
    written = entry(run, **launched(pid))
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert (slot.entry, slot.training, slot.pids) == (written, known(run), [pid])


async def test_what_was_launched_before_that_could_be_written_down_is_adopted(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any
) -> None:
    run = await pool.submit()
    entry(run)
    pid = living(run)
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert (slot.entry.state, slot.pids) == (SlotState.RUNNING, [pid])


async def test_what_ended_before_its_launch_could_be_written_down_is_concluded(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, tmp_path: Path
) -> None:
    run = await pool.submit()
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    written = entry(run)
    Path(written.run_directory).mkdir()
    RunDirectory(Path(written.run_directory)).write(Exit(exit_code=3, ended_at_s=2.0))
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert slot.entry.state is SlotState.RUNNING  # supervision finds the exit and takes it on


async def test_what_died_meanwhile_is_taken_on_to_be_concluded(
    pool: Pool, recover: Recover, slots: Slots, entry: Any
) -> None:
    run = await pool.submit()
    entry(run, **{**launched(2**22 + 1), "state": SlotState.DRAINING})
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert (slot.entry.state, slot.pids, slot.launcher_lives) == (SlotState.DRAINING, [], False)


async def test_what_had_vacated_its_devices_holds_none_and_is_concluded(
    pool: Pool, recover: Recover, slots: Slots, entry: Any
) -> None:
    run = await pool.submit()
    entry(run, **{**launched(2**22 + 1), "state": SlotState.VACATED, "freed_at_s": 9.0})
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert slot.gone
    assert slots.holding == ()


async def test_what_was_claimed_but_not_launched_goes_back_into_the_queue(
    pool: Pool, recover: Recover, slots: Slots, claims: Claims, entry: Any, store: Store
) -> None:
    run = await pool.submit()
    assert await claims.claim(run)
    entry(run)
    await recover()
    assert await pool.state(run) == "AwaitingGPU"
    assert len(slots) == 0
    assert store.open_entries("one") == ()


async def test_what_was_claimed_only_to_be_marked_goes_back_into_the_queue(
    pool: Pool, recover: Recover, claims: Claims
) -> None:
    run = await pool.submit()
    assert await claims.claim(run)
    await recover()
    assert await pool.state(run) == "AwaitingGPU"


async def test_what_was_claimed_only_to_be_marked_is_still_held_for_the_same_reason(
    pool: Pool, recover: Recover, claims: Claims
) -> None:
    marked, released = await pool.submit(), await pool.submit()
    for run, code in ((marked, "NO_FREE_SLOT"), (released, "LEAST_COMPLETION_TIME")):
        told = {labels.REASON_CODE: code, labels.REASON: "Why."}
        await pool.client.update_flow_run_labels(run.id, told)
        assert await claims.claim(run)
    await recover()
    assert await pool.code(marked) == "NO_FREE_SLOT"
    assert await pool.code(released) == "PUT_BACK"


async def test_claims_and_releases_of_another_worker_are_left_alone(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, store: Store
) -> None:
    claimed, released = await pool.submit(), await pool.submit()
    assert await Claims(pool.client, "two").claim(claimed)
    written = entry(released, worker="two", **launched(2**22 + 1))
    await recover()
    assert await pool.state(claimed) == "Pending"
    assert len(slots) == 0
    assert store.open_entries("two") == (written,)


async def test_a_run_that_was_deleted_meanwhile_is_closed(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any, store: Store
) -> None:
    gone, gone_but_running = await pool.submit(), await pool.submit()
    entry(gone)
    entry(gone_but_running, **launched(living(gone_but_running)))
    for run in (gone, gone_but_running):
        await pool.client.delete_flow_run(run.id)
    await recover()
    assert [slot.entry.run_id for slot in slots] == [str(gone_but_running.id)]
    assert [each.run_id for each in store.open_entries("one")] == [str(gone_but_running.id)]


@pytest.mark.parametrize(
    "error",
    [ObjectNotFound(Exception("flow")), JobVariableError("There is no job variable.")],
    ids=["flow deleted", "template changed"],
)
async def test_a_living_training_is_adopted_even_when_little_is_known_of_it(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any, error: Exception
) -> None:
    async def unknown(flow_run: FlowRun) -> Training:
        raise error

    run = await pool.submit()
    entry(run, **launched(living(run)))
    await recover(unknown)
    slot = slots.get(str(run.id))
    assert slot is not None
    assert slot.training == Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0)


async def test_recovery_may_be_repeated(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any
) -> None:
    run = await pool.submit()
    entry(run, **launched(living(run)))
    await recover()
    slot = slots.get(str(run.id))
    await recover()
    assert slots.get(str(run.id)) is slot
    assert len(slots) == 1


async def test_what_died_running_before_its_launch_could_be_written_down_is_concluded(
    pool: Pool, recover: Recover, slots: Slots, entry: Any
) -> None:
    run = await pool.submit()
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    written = entry(run)
    directory = RunDirectory(Path(written.run_directory))
    directory.path.mkdir()
    directory.write(Placement(run_id=str(run.id)))
    await recover()
    assert str(run.id) in slots


def release(run_id: str, **changes: Any) -> LedgerEntry:
    plain = LedgerEntry(
        run_id=run_id,
        name=run_id,
        worker="one",
        state=SlotState.RUNNING,
        devices=("cpu-0",),
        run_directory=run_id,
        reserved_at_s=10.0,
        launched_at_s=11.0,
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("other", "beside"),
    [
        (release("other"), True),
        (release("other", ended_at_s=12.0, state=SlotState.ENDED), True),
        (release("other", ended_at_s=10.5, state=SlotState.ENDED), False),
        (release("other", devices=("cpu-1",)), False),
        (release("other", launched_at_s=None, state=SlotState.ENDED), False),
        (release("run"), False),
    ],
    ids=["is there", "was there", "was gone", "elsewhere", "never came", "itself"],
)
def test_the_ledger_tells_who_was_beside_another(other: LedgerEntry, beside: bool) -> None:
    assert was_beside_another(release("run"), [other]) is beside


async def test_a_training_that_was_beside_another_is_remembered_as_such(
    pool: Pool, recover: Recover, slots: Slots, entry: Any, living: Any
) -> None:
    run, partner = await pool.submit(), await pool.submit()
    entry(run, **launched(living(run)), launched_at_s=2.0)
    entry(partner, state=SlotState.ENDED, launched_at_s=3.0, ended_at_s=4.0)
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert slot.measured_beside_partner


async def test_a_run_that_was_cancelled_while_it_was_claimed_to_be_marked_is_cancelled(
    pool: Pool, claims: Claims, recover: Recover
) -> None:
    run = await pool.submit()
    assert await claims.claim(run)
    await pool.client.set_flow_run_state(
        run.id, Cancelling(), force=True
    )  # and the server was away when the claim was looked at
    await recover()
    assert (await pool.read(run)).state_name == "Cancelled"


async def test_so_is_one_that_has_been_running_before_it_was_put_back(
    pool: Pool, claims: Claims, recover: Recover
) -> None:
    run = await pool.submit()
    assert await claims.claim(run)
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    assert await claims.requeue(run, "It was killed.", not_before=None)
    assert await claims.claim(await pool.read(run))
    await pool.client.set_flow_run_state(run.id, Cancelling(), force=True)
    await recover()
    assert (await pool.read(run)).state_name == "Cancelled"


@pytest.mark.parametrize("claimed_by", ["one", "other"])
async def test_a_run_whose_process_somebody_ends_stays_cancelling(
    pool: Pool, recover: Recover, claimed_by: str
) -> None:
    run = await pool.submit()
    assert await Claims(pool.client, claimed_by).claim(run)
    if claimed_by == "one":
        await pool.client.set_flow_run_state(run.id, Running(), force=True)
    await pool.client.set_flow_run_state(run.id, Cancelling(), force=True)
    await recover()
    assert (await pool.read(run)).state_name == "Cancelling"


async def test_a_launcher_that_had_ended_before_its_start_was_seen_is_not_alive(
    pool: Pool, recover: Recover, slots: Slots, entry: Any
) -> None:
    run = await pool.submit()
    process = subprocess.Popen(["true"])
    process.wait()
    entry(run, **launched(process.pid) | {"launcher_started_ticks": None})
    await recover()
    slot = slots.get(str(run.id))
    assert slot is not None
    assert not slot.launcher_lives
