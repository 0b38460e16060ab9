"""Claim, verify, act, against a real server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import (
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Pending,
    Running,
    Scheduled,
)

from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import AWAITING_GPU, REFUSED, Claims

pytestmark = pytest.mark.server


@flow
def train() -> None:
    """Never runs: its states are what is tested."""


class Pool:
    """A pool with one deployment."""

    def __init__(self, client: PrefectClient, name: str, deployment: UUID) -> None:
        self.client = client
        self.name = name
        self.deployment = deployment

    async def submit(self) -> FlowRun:
        return await self.client.create_flow_run_from_deployment(self.deployment)

    async def read(self, flow_run: FlowRun) -> FlowRun:
        return await self.client.read_flow_run(flow_run.id)

    async def set(self, flow_run: FlowRun, state: State, *, force: bool = True) -> None:
        await self.client.set_flow_run_state(flow_run.id, state, force=force)

    def claims(self, worker: str = "one") -> Claims:
        return Claims(self.client, worker)


@pytest.fixture
async def pool(prefect_server: str) -> AsyncIterator[Pool]:
    async with get_client() as client:
        name = f"claims-{uuid4().hex[:8]}"
        await client.create_work_pool(WorkPoolCreate(name=name, type="process"))
        flow_id = await client.create_flow(train)
        deployment = await client.create_deployment(
            flow_id=flow_id, name=name, work_pool_name=name, entrypoint="train.py:train"
        )
        yield Pool(client, name, deployment)


async def test_a_scheduled_run_is_claimed_once(pool: Pool) -> None:
    run = await pool.submit()
    outcomes = await asyncio.gather(*(pool.claims(f"w{i}").claim(run) for i in range(4)))
    assert sorted(outcomes) == [False, False, False, True]
    assert (await pool.read(run)).state_type is StateType.PENDING


@pytest.mark.parametrize(
    "state", [Completed(), Failed(), Cancelled(), Running(), Pending()], ids=lambda s: s.name
)
async def test_a_run_that_is_not_scheduled_keeps_its_state(pool: Pool, state: State) -> None:
    stale = await pool.submit()
    await pool.set(stale, state)
    assert not await pool.claims().claim(stale)
    assert (await pool.read(stale)).state_type is state.type


async def test_a_deleted_run_is_not_claimed(pool: Pool) -> None:
    run = await pool.submit()
    await pool.client.delete_flow_run(run.id)
    assert not await pool.claims().claim(run)
    assert not await pool.claims().mark_held(run, "No device is free.")


async def test_a_held_run_shows_its_reason_and_keeps_its_scheduled_time(pool: Pool) -> None:
    run = await pool.submit()
    assert await pool.claims().mark_held(run, "No device is free.")
    held = (await pool.read(run)).state
    assert held is not None
    assert run.state is not None
    assert (held.type, held.name, held.message) == (
        StateType.SCHEDULED,
        AWAITING_GPU,
        "No device is free.",
    )
    assert held.state_details.scheduled_time == run.state.state_details.scheduled_time


async def test_a_held_run_can_be_claimed_from_an_old_view(pool: Pool) -> None:
    run = await pool.submit()
    await pool.claims("other").mark_held(run, "No device is free.")
    assert await pool.claims().claim(run)


async def test_a_mark_written_over_a_cancel_does_not_revive_the_run(pool: Pool) -> None:
    run = await pool.submit()
    await pool.set(run, Cancelled(message="by its owner"))
    await pool.set(run, Scheduled(name=AWAITING_GPU))
    assert not await pool.claims().claim(run)
    assert (await pool.read(run)).state_type is StateType.CANCELLED


async def test_a_retry_asked_for_after_a_cancel_is_claimed(pool: Pool) -> None:
    run = await pool.submit()
    await pool.set(run, Cancelled())
    await pool.set(run, Scheduled(name="AwaitingRetry"))
    assert await pool.claims().claim(run)


async def test_a_refused_run_fails_with_the_reason(pool: Pool) -> None:
    run = await pool.submit()
    assert await pool.claims().refuse(run, "It needs 90000 MiB; no device has more than 16000.")
    state = (await pool.read(run)).state
    assert state is not None
    assert (state.type, state.name) == (StateType.FAILED, REFUSED)
    assert state.message == "It needs 90000 MiB; no device has more than 16000."


async def test_a_claimed_run_goes_back_into_the_queue(pool: Pool) -> None:
    run = await pool.submit()
    claims = pool.claims()
    assert await claims.claim(run)
    assert await claims.give_back(run, "Its worker restarted.")
    assert (await pool.read(run)).state_name == AWAITING_GPU


async def test_what_goes_back_into_the_queue_does_not_keep_the_reason_of_its_release(
    pool: Pool,
) -> None:
    told = {labels.REASON_CODE: "LEAST_COMPLETION_TIME", labels.REASON: "Released to GPU 0."}
    gone = {labels.DEVICES: "GPU-1", labels.PARTNER: "bert", labels.PREDICTED_SLOWDOWN: "1.300"}
    given_back, requeued = [await pool.submit() for _ in range(2)]
    claims = pool.claims()
    for run in (given_back, requeued):
        assert await claims.claim(run)
        await pool.client.update_flow_run_labels(run.id, {**told, **gone})
    await pool.set(requeued, Running())
    assert await claims.give_back(given_back, "It could not be launched.")
    assert await claims.requeue(requeued, "Requeued: stopped.", not_before=None)
    for run, reason in (
        (given_back, "It could not be launched."),
        (requeued, "Requeued: stopped."),
    ):
        shown = (await pool.read(run)).labels
        assert (shown[labels.REASON_CODE], shown[labels.REASON]) == ("PUT_BACK", reason)
        assert [shown[label] for label in gone] == ["", "", ""]


class CancelledOnceClaimed:
    """The server, where somebody cancels a run right after it was claimed."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def set_flow_run_state(self, run_id: UUID, state: State) -> Any:
        result = await self._client.set_flow_run_state(run_id, state)
        await self._client.set_flow_run_state(run_id, Cancelling(), force=True)
        return result


async def test_a_run_that_is_cancelled_while_it_is_claimed_is_cancelled(pool: Pool) -> None:
    run = await pool.submit()
    client: Any = CancelledOnceClaimed(pool.client)
    assert not await Claims(client, "one").claim(run)
    assert (await pool.read(run)).state_name == "Cancelled"


async def test_a_run_that_is_cancelled_before_it_is_given_back_is_cancelled(pool: Pool) -> None:
    run = await pool.submit()
    claims = pool.claims()
    assert await claims.claim(run)
    await pool.set(run, Cancelling())
    assert not await claims.give_back(run, "It could not be launched.")
    assert (await pool.read(run)).state_name == "Cancelled"


async def test_a_run_that_is_being_ended_by_whoever_started_it_is_left_to_them(pool: Pool) -> None:
    run = await pool.submit()
    await pool.set(run, Running())
    await pool.set(run, Cancelling())
    assert not await pool.claims().give_back(run, "It could not be launched.")
    assert (await pool.read(run)).state_name == "Cancelling"


async def test_somebody_elses_claim_is_not_given_back(pool: Pool) -> None:
    run = await pool.submit()
    assert await pool.claims("other").claim(run)
    assert not await pool.claims("one").give_back(run, "Its worker restarted.")
    assert (await pool.read(run)).state_type is StateType.PENDING


async def test_race_of_three_workers_fifty_runs_and_random_cancels(pool: Pool) -> None:
    """None is started twice, none revived after a cancel, none left in Pending."""
    dice = random.Random(20)
    runs = [await pool.submit() for _ in range(50)]
    starts: Counter[UUID] = Counter()
    started_when_cancelled: list[UUID] = []
    cancelled: set[UUID] = set()

    async def work(name: str) -> None:
        claims = pool.claims(name)
        # The view is taken once and never refreshed: every row but the first is stale.
        rows = list(runs)
        for _ in range(3):
            dice.shuffle(rows)
            for row in rows:
                if dice.random() < 0.4:
                    await claims.mark_held(row, f"Held by {name}.")
                    continue
                cancelled_before = row.id in cancelled
                if not await claims.claim(row):
                    continue
                starts[row.id] += 1
                if cancelled_before:
                    started_when_cancelled.append(row.id)
                await pool.client.set_flow_run_state(row.id, Running())
                # The server lets a run begin that was cancelled after its claim: such a one is
                # stopped, which is what supervision does.
                history = await pool.client.read_flow_run_states(row.id)
                stopped = any(state.is_cancelled() for state in history)
                await pool.set(row, Cancelled() if stopped else Completed(), force=stopped)

    async def cancel() -> None:
        for run in dice.sample(runs, 25):
            await asyncio.sleep(dice.random() * 0.2)
            result = await pool.client.set_flow_run_state(run.id, Cancelled())
            if result.state is not None and result.state.is_cancelled():
                cancelled.add(run.id)

    await asyncio.gather(*(work(f"w{i}") for i in range(3)), cancel())
    final = [await pool.read(run) for run in runs]
    assert max(starts.values()) == 1
    assert started_when_cancelled == []
    assert [run.name for run in final if run.state_type is StateType.PENDING] == []
    # One that had been started may complete before it notices; nobody else may come back.
    revived = [
        run.id
        for run in final
        if run.id in cancelled and not starts[run.id] and run.state_type != StateType.CANCELLED
    ]
    assert revived == []
    assert {run.state_type for run in final} <= {StateType.COMPLETED, StateType.CANCELLED}


async def test_tasks_of_one_worker_take_turns_at_a_run(pool: Pool) -> None:
    claims = pool.claims()
    run = await pool.submit()
    wanted = False

    async def start() -> bool:
        nonlocal wanted
        wanted = True
        return await claims.claim(run)

    marked, started, put_back = await asyncio.gather(
        claims.mark_held(run, "Full."),
        start(),
        # It looked as if it had been claimed and left: it was being marked.
        claims.give_back(run, "Left behind.", unless=lambda: wanted),
    )
    assert (marked, started, put_back) == (True, True, False)
    assert claims.is_ours((await pool.read(run)).state)
    assert not claims._in_hand


async def test_a_requeued_run_can_be_claimed_though_it_had_a_final_state(pool: Pool) -> None:
    run = await pool.submit()
    claims = pool.claims()
    assert await claims.claim(run)
    await pool.set(run, Crashed(message="killed"))
    assert await claims.requeue(run, "The host was restarted.", not_before=None)
    state = (await pool.read(run)).state
    assert state is not None
    assert (state.name, state.message) == (AWAITING_GPU, "The host was restarted.")
    assert await pool.claims("other").claim(run)


async def test_only_the_end_that_was_followed_by_a_requeue_is_forgiven(pool: Pool) -> None:
    run = await pool.submit()
    claims = pool.claims()
    assert await claims.claim(run)
    await pool.set(run, Crashed(message="killed"))
    assert await claims.requeue(run, "Again.", not_before=None)
    await pool.set(run, Cancelled(message="by its owner"))
    await pool.set(run, Scheduled(name=AWAITING_GPU))  # a stale write
    assert not await claims.claim(run)
    assert (await pool.read(run)).state_type is StateType.CANCELLED


@pytest.mark.parametrize("state", [Completed(), Cancelled(), Cancelling()], ids=lambda s: s.name)
async def test_what_is_over_is_not_requeued(pool: Pool, state: State) -> None:
    run = await pool.submit()
    assert await pool.claims().claim(run)
    await pool.set(run, state)
    assert not await pool.claims().requeue(run, "Again.", not_before=None)
    assert (await pool.read(run)).state_type is state.type


async def test_a_cancel_that_was_overwritten_is_put_back_by_the_requeue(pool: Pool) -> None:
    run = await pool.submit()
    assert await pool.claims().claim(run)
    await pool.set(run, Cancelled(message="by its owner"))
    await pool.set(run, Running())  # by a process that did not know
    assert not await pool.claims().requeue(run, "Again.", not_before=None)
    assert (await pool.read(run)).state_type is StateType.CANCELLED


async def test_a_deleted_run_is_not_requeued(pool: Pool) -> None:
    run = await pool.submit()
    await pool.client.delete_flow_run(run.id)
    assert not await pool.claims().requeue(run, "Again.", not_before=None)


async def test_what_another_worker_has_claimed_is_taken_over(pool: Pool) -> None:
    run = await pool.submit()
    assert await pool.claims("one").claim(run)
    assert not await pool.claims("one").is_taken_over(run.id)
    assert await pool.claims("two").is_taken_over(run.id)
