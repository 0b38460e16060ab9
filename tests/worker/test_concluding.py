"""Conclusions: a final state where a run has none, or its way back into the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import (
    AwaitingRetry,
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Pending,
    Running,
    Scheduled,
)

from tests.worker.conftest import Pool
from xonar_prefect.core.endings import Cause, Ending
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import (
    Limits,
    Profile,
    Training,
)
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.run_directory import Exit, OutOfMemory
from xonar_prefect.store import Store
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import AWAITING_GPU, Claims
from xonar_prefect.worker.concluding import CRASH_ARTIFACT, Concluding
from xonar_prefect.worker.endings import exit_sentence
from xonar_prefect.worker.requeueing import Requeueing, tally_of, with_history
from xonar_prefect.worker.slots import Slot, Slots

Conclude = Callable[..., Awaitable[bool]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def slots(store: Store) -> Slots:
    return Slots(store, "one", time.time)


@pytest.fixture
def readings() -> list[DeviceReading]:
    return []


@pytest.fixture
def conclude(pool: Pool, store: Store, slots: Slots, readings: list[DeviceReading]) -> Conclude:
    """Conclude as worker "one" would; runs may be started again once."""

    async def max_requeues_of(_flow_run: FlowRun) -> int:
        return 1

    async def conclude(slot: Slot, client: Any = pool.client) -> bool:
        claims = Claims(client, "one")
        requeueing = Requeueing(
            client, claims, store, clock=time.time, max_requeues_of=max_requeues_of
        )
        concluding = Concluding(client, claims, requeueing, slots, limits=Limits())
        concluding.note_memory(slot, readings)
        return await concluding.conclude(slot)

    return conclude


@pytest.fixture
async def run(pool: Pool) -> FlowRun:
    return await pool.submit()


@pytest.fixture
def slot(run: FlowRun, tmp_path: Path) -> Slot:
    slot = Slot(
        entry=LedgerEntry(
            run_id=str(run.id),
            name=run.name,
            worker="one",
            state=SlotState.DRAINING,
            run_directory=str(tmp_path / "run"),
            reserved_at_s=0.0,
            exit_code=3,
        ),
        training=Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0),
    )
    slot.run_directory.path.mkdir()
    slot.run_directory.output.write_text("epoch 1\n```\nout of paper\n")
    return slot


@pytest.mark.server
@pytest.mark.parametrize("state", [Pending(), Running()], ids=lambda state: state.name)
async def test_a_run_that_did_not_finish_crashed_with_the_end_of_its_output(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude, state: State
) -> None:
    await pool.client.set_flow_run_state(run.id, state, force=True)
    await conclude(slot)
    final = (await pool.read(run)).state
    assert final is not None
    assert (final.type, final.message) == (StateType.CRASHED, exit_sentence(3))
    (artifact,) = await pool.artifacts(run, CRASH_ARTIFACT)
    assert artifact.description == exit_sentence(3)
    assert "\n    epoch 1\n    ```\n    out of paper\n" in str(artifact.data)


@pytest.mark.server
@pytest.mark.parametrize(
    "state", [Completed(), Failed(), Scheduled(name="AwaitingRetry")], ids=lambda state: state.name
)
async def test_a_run_that_ended_itself_or_waits_again_is_left_alone(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude, state: State
) -> None:
    await pool.client.set_flow_run_state(run.id, state, force=True)
    before = (await pool.read(run)).state_id
    await conclude(slot)
    assert (await pool.read(run)).state_id == before
    assert await pool.artifacts(run, CRASH_ARTIFACT) == []


CUT_OFF = """    raise mapped_exc(message) from exc
httpx.ConnectError: All connection attempts failed
21:23:57.530 | ERROR   | prefect.runner - Process exited with status code: 1.
"""


@pytest.mark.server
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_training_that_the_server_was_away_for_at_its_start_goes_back_into_the_queue(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude, has_begun: bool
) -> None:
    assert await Claims(pool.client, "one").claim(run)
    if has_begun:
        await pool.client.set_flow_run_state(run.id, Running())
    # As `prefect flow-run execute` tells it once the server is back.
    said = "Process exited with status code: 1. Process exited with a general error."
    await pool.client.set_flow_run_state(run.id, Crashed(message=said))
    slot.run_directory.output.write_text(CUT_OFF)
    assert await conclude(slot)
    state = (await pool.read(run)).state
    assert state is not None
    if has_begun:
        assert (state.name, state.message) == ("Crashed", said)
        return
    assert state.name == AWAITING_GPU
    assert state.message == (
        "Requeued (launch 1 of 2): The Prefect server could not be reached when the training "
        "started (httpx.ConnectError: All connection attempts failed)."
    )


class CancelledOnceRead:
    """The server, where somebody cancels a run right after it was read for the first time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._is_cancelled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool.client, name)

    async def read_flow_run(self, run_id: UUID) -> FlowRun:
        flow_run: FlowRun = await self._pool.client.read_flow_run(run_id)
        if not self._is_cancelled:
            self._is_cancelled = True
            await self._pool.client.set_flow_run_state(run_id, Cancelling())
        return flow_run


@pytest.mark.server
async def test_a_run_that_is_cancelled_while_it_is_concluded_is_concluded_as_cancelled(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    await pool.client.update_flow_run(run.id, infrastructure_pid="here:1")
    client = CancelledOnceRead(pool)
    assert not await conclude(slot, client)
    assert await conclude(slot, client)
    assert await pool.state(run) == "Cancelled"


@pytest.mark.server
async def test_a_run_that_died_while_it_waited_for_its_own_retry_crashed(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    policy = run.empirical_policy.model_copy(update={"retry_type": "in_process"})
    await pool.client.update_flow_run(run.id, empirical_policy=policy)
    await pool.client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    await conclude(slot)
    assert await pool.state(run) == "Crashed"


@pytest.mark.server
async def test_a_run_that_was_being_cancelled_is_cancelled(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    slot.stop_reason = "Cancelled."
    await pool.client.set_flow_run_state(run.id, Cancelling(), force=True)
    await conclude(slot)
    assert await pool.state(run) == "Cancelled"
    assert await pool.artifacts(run, CRASH_ARTIFACT) == []


@pytest.mark.server
async def test_a_run_that_was_deleted_needs_no_end(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await pool.client.delete_flow_run(UUID(str(run.id)))
    await conclude(slot)


class Failing:
    """A client that fails at the first call of one method, after what the server made of it."""

    def __init__(self, client: Any, method: str) -> None:
        self._client = client
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._client, name)

        async def fails(*_args: Any, **_options: Any) -> Any:
            raise httpx.ConnectError("cut")

        return fails


@pytest.mark.server
async def test_a_crash_whose_state_could_not_be_written_is_shown_once(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    with pytest.raises(httpx.ConnectError):
        await conclude(slot, Failing(pool.client, "set_flow_run_state"))
    await conclude(slot)
    assert await pool.state(run) == "Crashed"
    assert len(await pool.artifacts(run, CRASH_ARTIFACT)) == 1


async def claimed(pool: Pool, run: FlowRun, *states: State) -> None:
    """Bring a run into the last of these states, as one that this worker has launched."""
    assert await Claims(pool.client, "one").claim(run)
    await pool.client.update_flow_run(run.id, infrastructure_pid="host:1")
    for state in states:
        await pool.client.set_flow_run_state(run.id, state, force=True)


def killed(slot: Slot) -> None:
    slot.entry = replace(slot.entry, exit_code=-9)
    slot.run_directory.write(Exit(exit_code=-9, ended_at_s=1.0, oom_kills=1))


HOST = "The host ran out of memory"


@pytest.mark.server
@pytest.mark.parametrize(
    "state",
    [Running(), Crashed(message="Process exited with status code: -9. It was killed.")],
    ids=lambda state: state.name,
)
async def test_what_the_host_killed_waits_its_time_and_can_be_claimed_again(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude, state: State
) -> None:
    await claimed(pool, run, Running(), state)
    killed(slot)
    before_s = time.time()
    await conclude(slot)
    again = await pool.read(run)
    assert again.state is not None
    assert (again.state.type, again.state.name) == (StateType.SCHEDULED, AWAITING_GPU)
    assert again.state.message is not None
    assert again.state.message.startswith("Requeued (restart 1 of 1): ")
    assert HOST in again.state.message
    scheduled_time = again.state.state_details.scheduled_time
    assert scheduled_time is not None
    assert 5 < scheduled_time.timestamp() - before_s < 60
    assert again.infrastructure_pid is None
    assert again.expected_start_time == run.expected_start_time  # it keeps its place
    assert tally_of(again.labels).requeues == 1
    assert again.labels[labels.LAST_ENDING] == Cause.HOST_OUT_OF_MEMORY.value
    assert await pool.artifacts(run, CRASH_ARTIFACT) == []
    assert await Claims(pool.client, "two").claim(again)


@pytest.mark.server
async def test_what_is_killed_every_time_crashes_in_the_end(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    killed(slot)
    for _ in range(2):
        await claimed(pool, await pool.read(run), Running())
        slot.verdict = None
        await conclude(slot)
    final = (await pool.read(run)).state
    assert final is not None
    assert final.type is StateType.CRASHED
    assert final.message is not None
    assert final.message.endswith("It was requeued once before.")


@pytest.mark.server
async def test_a_requeue_that_is_repeated_does_not_count_twice(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running())
    killed(slot)
    with pytest.raises(httpx.ConnectError):
        await conclude(slot, Failing(pool.client, "set_flow_run_state"))
    await conclude(slot)
    again = await pool.read(run)
    assert again.state_name == AWAITING_GPU
    assert tally_of(again.labels).requeues == 1


@pytest.mark.server
@pytest.mark.parametrize(
    "state", [Cancelled(), Completed(), Failed(message="ValueError: bad")], ids=lambda s: s.name
)
async def test_what_is_over_is_not_revived_by_a_killed_process(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude, state: State
) -> None:
    await claimed(pool, run, Running(), state)
    killed(slot)
    await conclude(slot)
    assert (await pool.read(run)).state_type is state.type


@pytest.mark.server
async def test_a_run_that_somebody_else_has_claimed_is_theirs(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Crashed())
    await pool.client.set_flow_run_state(run.id, Scheduled(), force=True)
    assert await Claims(pool.client, "two").claim(await pool.read(run))
    await pool.client.set_flow_run_state(run.id, Running())
    killed(slot)
    await conclude(slot)
    assert await pool.state(run) == "Running"


@pytest.mark.server
async def test_a_second_copy_gives_the_run_back_to_the_first(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running())
    await pool.client.set_flow_run_state(run.id, Scheduled(), force=True)  # by whomever
    await claimed(pool, await pool.read(run))
    slot.run_directory.write(Exit(exit_code=75, ended_at_s=1.0, second_copy=True))
    await conclude(slot)
    assert await pool.state(run) == "Running"


@pytest.mark.server
async def test_a_stopped_training_goes_back_at_once(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running())
    slot.stop_requested_at_s = time.time()
    slot.stopped_to_run_again = Ending(cause=Cause.WORKER_STOPPED, sentence="It was stopped.")
    await pool.client.set_flow_run_state(run.id, Crashed(message="Terminated."), force=True)
    await conclude(slot)
    again = await pool.read(run)
    assert again.state is not None
    assert (again.state.name, again.state.message) == (AWAITING_GPU, "Requeued: It was stopped.")
    assert again.next_scheduled_start_time is not None
    assert again.next_scheduled_start_time.timestamp() <= time.time()


@pytest.mark.server
async def test_a_cancelled_training_that_calls_it_a_crash_was_cancelled(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running())
    slot.stop_requested_at_s, slot.stop_reason = time.time(), "Cancelled."
    await pool.client.set_flow_run_state(run.id, Crashed(message="Terminated."), force=True)
    await conclude(slot)
    assert await pool.state(run) == "Cancelled"


@pytest.mark.server
async def test_a_requeued_run_that_is_cancelled_stays_cancelled(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running(), Crashed(message="Process exited with status code: -9."))
    killed(slot)
    await conclude(slot)
    await pool.client.set_flow_run_state(run.id, Cancelling())
    assert await pool.state(run) == "Cancelled"  # at once: there is no process to wait for
    assert not await Claims(pool.client, "two").claim(run)
    assert await pool.state(run) == "Cancelled"


@pytest.mark.server
async def test_a_run_that_is_cancelled_before_it_can_be_requeued_is_concluded_as_cancelled(
    pool: Pool, run: FlowRun, slot: Slot, conclude: Conclude
) -> None:
    await claimed(pool, run, Running())
    killed(slot)
    client = CancelledOnceRead(pool)
    assert not await conclude(slot, client)
    assert await conclude(slot, client)
    assert await pool.state(run) == "Cancelled"


@pytest.mark.server
async def test_cancels_and_requeues_at_once_never_revive_a_run(
    pool: Pool, slot: Slot, conclude: Conclude
) -> None:
    killed(slot)
    final = Crashed(message="Process exited with status code: -9.")
    runs = [await pool.submit() for _ in range(6)]
    for position, run in enumerate(runs):
        await claimed(pool, run, Running(), *([final] if position % 2 else []))

    async def requeue(run: FlowRun) -> None:
        entry = replace(slot.entry, run_id=str(run.id), run_directory=slot.entry.run_directory)
        await conclude(Slot(entry=entry, training=slot.training))

    async def cancel(run: FlowRun) -> bool:
        result = await pool.client.set_flow_run_state(run.id, Cancelled(message="by its owner"))
        return result.state is not None and result.state.is_cancelled()

    outcomes = await asyncio.gather(*(each(run) for run in runs for each in (requeue, cancel)))
    for run, cancelled in zip(runs, outcomes[1::2], strict=True):
        claim = await Claims(pool.client, "two").claim(await pool.read(run))
        assert not (cancelled and claim), await pool.client.read_flow_run_states(run.id)


KEY, MODEL = "kind", "RTX"
RAN_OUT = "torch.OutOfMemoryError: CUDA out of memory."


def on_gpu(slot: Slot, request_mib: int | None = 8000) -> None:
    slot.entry = replace(
        slot.entry,
        devices=("GPU-1",),
        device_model=MODEL,
        request_mib=request_mib,
        profile_key=KEY,
        exit_code=0,
    )
    slot.run_directory.write(OutOfMemory(message=RAN_OUT))
    slot.run_directory.write(Exit(exit_code=0, ended_at_s=1.0))


def gpu(used_mib: int, **used_by_pid: int) -> DeviceReading:
    return DeviceReading(
        id="GPU-1",
        index=0,
        model=MODEL,
        memory_mib=24000,
        used_mib=used_mib,
        used_by_pid={int(pid[1:]): mib for pid, mib in used_by_pid.items()},
    )


@pytest.fixture
def profiled(store: Store) -> Callable[[], int | None]:
    """Know a profile; returns its memory peak as it is now."""
    profile = Profile(key=KEY, device_model=MODEL, active_fraction=0.5, peak_memory_mib=7000)
    store.ingest_profile("artifact", profile, Recipe(flow="f", entrypoint=None, task="t"), 1.0)
    return lambda: store.profiles_for(KEY)[MODEL].peak_memory_mib


@pytest.mark.server
async def test_out_of_memory_raises_the_peak_and_runs_again_with_more_then_alone_then_fails(
    pool: Pool,
    run: FlowRun,
    slot: Slot,
    conclude: Conclude,
    readings: list[DeviceReading],
    profiled: Callable[[], int | None],
) -> None:
    on_gpu(slot)
    readings.append(gpu(used_mib=2000))
    floors, alone = [], []
    for _ in range(3):
        await claimed(pool, await pool.read(run), Running())
        slot.verdict = None
        await conclude(slot)
        now = with_history(slot.training, (await pool.read(run)).labels)
        floors.append(now.memory_request_mib)
        alone.append(now.exclusive)
        slot.entry = replace(slot.entry, request_mib=now.memory_request_mib)
    assert floors == [10000, 12500, 15625]
    assert profiled() == 15625
    assert alone == [False, True, True]
    final = (await pool.read(run)).state
    assert final is not None
    assert final.type is StateType.FAILED
    assert final.message is not None
    assert final.message.startswith(f"The training ran out of device memory ({RAN_OUT}).")
    assert "3 times" in final.message


@pytest.mark.server
async def test_a_victim_of_its_partner_is_not_charged_and_the_partner_is_expected_to_need_more(
    pool: Pool,
    run: FlowRun,
    slot: Slot,
    slots: Slots,
    conclude: Conclude,
    readings: list[DeviceReading],
    profiled: Callable[[], int | None],
) -> None:
    on_gpu(slot)
    slot.entry = replace(slot.entry, profile_key="victim")
    greedy = replace(
        slot.entry, run_id="greedy", name="greedy", profile_key=KEY, state=SlotState.RUNNING
    )
    partner = slots.adopt(greedy, Training(run_id="greedy", name="greedy", submitted_at_s=0.0))
    partner.pids = [7]
    slots.adopt(slot.entry, slot.training)
    readings.append(gpu(used_mib=20000, p7=20000))
    await claimed(pool, run, Running())
    await conclude(slot)
    again = await pool.read(run)
    assert again.state is not None
    assert again.state.name == AWAITING_GPU
    assert "'greedy' beside it used more than was reserved for that." in str(again.state.message)
    assert tally_of(again.labels).out_of_memory == 0
    assert labels.MEMORY_FLOOR_MIB not in again.labels
    assert profiled() == 20000
