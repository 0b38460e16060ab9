"""Limits, pauses, priorities and deletions, kept by a whole worker on the session's server."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
)
from prefect.states import Cancelled

from tests.worker.conftest import Pool, Working
from tests.worker.trainings import succeed
from tests.worker.waiting import eventually
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker import starting

pytestmark = pytest.mark.server

Ledger = Callable[[FlowRun], tuple[LedgerEntry, ...]]


async def state_is(pool: Pool, run: FlowRun, state: str) -> str:
    """Wait for a state; returns its message."""

    async def reached() -> bool:
        return await pool.state(run) == state

    await eventually(reached)
    return str((await pool.read(run)).state.message)  # type: ignore[union-attr]


async def code_is(pool: Pool, run: FlowRun, code: ReasonCode) -> None:
    async def shown() -> bool:
        return await pool.code(run) == code.value

    await eventually(shown)


async def of(pool: Pool, deployment: str, *between: str, **options: Any) -> FlowRun:
    """Submit a tiny training that needs no device, of a deployment."""
    command = succeed(pool.directory, *between)
    variables = {"command": command, "gpus": 0}
    return await pool.submit(deployment=deployment, job_variables=variables, **options)


async def test_the_limit_of_a_pool_holds_while_slots_come_and_go(
    pool: Pool, working: Working
) -> None:
    await pool.update(concurrency_limit=1)
    async with working():
        first = await of(pool, "plain", "wait=first")
        await state_is(pool, first, "Running")
        second, third = await of(pool, "plain", "wait=second"), await of(pool, "plain")
        for run in (second, third):
            await code_is(pool, run, ReasonCode.POOL_LIMIT)
        pool.open("first")
        await state_is(pool, second, "Running")
        assert pool.starts(third) == []
        pool.open("second")
        await state_is(pool, third, "Completed")


async def test_the_limit_of_a_queue_keeps_its_own_runs_only(pool: Pool, working: Working) -> None:
    await pool.client.create_work_queue("night", work_pool_name=pool.name, concurrency_limit=1)
    await pool.deploy("night", work_queue_name="night")
    async with working():
        first = await of(pool, "night", "wait=gate")
        await state_is(pool, first, "Running")
        second = await of(pool, "night")
        await code_is(pool, second, ReasonCode.QUEUE_LIMIT)
        await state_is(pool, await of(pool, "plain"), "Completed")
        assert pool.starts(second) == []
        pool.open("gate")
        await state_is(pool, second, "Completed")


def limit(strategy: ConcurrencyLimitStrategy) -> dict[str, Any]:
    return {"concurrency_limit": 1, "concurrency_options": ConcurrencyOptions(
        collision_strategy=strategy
    )}  # fmt: skip


async def test_a_deployment_limit_that_enqueues_has_its_runs_wait_and_nobody_elses(
    pool: Pool, working: Working
) -> None:
    await pool.deploy("limited", **limit(ConcurrencyLimitStrategy.ENQUEUE))
    async with working():
        first = await of(pool, "limited", "wait=gate")
        await state_is(pool, first, "Running")
        second = await of(pool, "limited")
        await code_is(pool, second, ReasonCode.DEPLOYMENT_LIMIT)
        await state_is(pool, await of(pool, "plain"), "Completed")
        assert await pool.state(second) != "AwaitingConcurrencySlot"  # nobody tried to claim it
        pool.open("gate")
        await state_is(pool, second, "Completed")


async def test_a_deployment_limit_that_cancels_cancels_the_new_run_and_nobody_elses(
    pool: Pool, working: Working
) -> None:
    await pool.deploy("limited", **limit(ConcurrencyLimitStrategy.CANCEL_NEW))
    async with working():
        first = await of(pool, "limited", "wait=gate")
        await state_is(pool, first, "Running")
        second = await of(pool, "limited")
        assert await state_is(pool, second, "Cancelled") == "Deployment concurrency limit reached."
        await state_is(pool, await of(pool, "plain"), "Completed")
        pool.open("gate")
        await state_is(pool, first, "Completed")
        await state_is(pool, await of(pool, "limited"), "Completed")
    assert pool.starts(second) == []


async def test_a_crashed_run_of_a_limited_deployment_does_not_cost_the_next_one_its_life(
    pool: Pool, working: Working, settings: XonarSettings
) -> None:
    # Nothing is marked here: that is what lets the server cancel while the limit is reached.
    await pool.deploy("limited", **limit(ConcurrencyLimitStrategy.CANCEL_NEW))
    async with working(settings=settings.model_copy(update={"mark_after_seconds": 600.0})):
        command = f"sh -c 'while ! test -e {pool.directory / 'gate'}; do sleep 0.02; done; exit 3'"
        variables = {"command": command, "gpus": 0}
        crashing = await pool.submit(deployment="limited", job_variables=variables)
        await state_is(pool, crashing, "Pending")
        waiting = await of(pool, "limited")
        await code_is(pool, waiting, ReasonCode.DEPLOYMENT_LIMIT)
        pool.open("gate")
        await state_is(pool, crashing, "Crashed")
        await state_is(pool, waiting, "Completed")


async def test_held_runs_do_not_use_up_the_limit_of_the_worker(
    pool: Pool, working: Working
) -> None:
    async with working(limit=2):
        first = await pool.succeed("wait=gate")
        await state_is(pool, first, "Running")
        held = [await pool.succeed() for _ in range(3)]
        for run in held:
            await state_is(pool, run, "AwaitingGPU")
        await state_is(pool, await of(pool, "plain"), "Completed")
        pool.open("gate")
        for run in held:
            await state_is(pool, run, "Completed")


async def test_the_queue_of_the_higher_priority_is_served_first(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    await pool.client.create_work_queue("urgent", work_pool_name=pool.name, priority=1)
    await pool.deploy("urgent", work_queue_name="urgent")
    async with working(limit=1):
        first = await of(pool, "plain", "wait=gate")
        await state_is(pool, first, "Running")
        slow, fast = await of(pool, "plain"), await of(pool, "urgent")
        for run in (slow, fast):
            await code_is(pool, run, ReasonCode.WORKER_LIMIT)
        pool.open("gate")
        for run in (slow, fast):
            await state_is(pool, run, "Completed")
        assert ledger(fast)[0].reserved_at_s < ledger(slow)[0].reserved_at_s


@pytest.fixture
def seldom(settings: XonarSettings) -> XonarSettings:
    """Return settings of a worker that reads its queue at the start and hardly again."""
    return settings.model_copy(update={"poll_seconds": 600.0})


@pytest.mark.parametrize("what", ["pool", "queue"])
async def test_what_was_paused_since_the_queue_was_read_releases_nothing(
    pool: Pool, working: Working, seldom: XonarSettings, what: str
) -> None:
    first, second = await of(pool, "plain", "wait=gate"), await of(pool, "plain")
    async with working(settings=seldom, limit=1):
        await state_is(pool, first, "Running")
        await code_is(pool, second, ReasonCode.WORKER_LIMIT)
        if what == "pool":
            await pool.update(is_paused=True)
        else:
            assert second.work_queue_id is not None
            await pool.client.update_work_queue(second.work_queue_id, is_paused=True)
        pool.open("gate")
        paused = ReasonCode.POOL_PAUSED if what == "pool" else ReasonCode.QUEUE_PAUSED
        await code_is(pool, second, paused)
        assert pool.starts(second) == []
        assert await pool.state(second) in ("Scheduled", "AwaitingGPU")


async def test_what_was_cancelled_or_deleted_since_the_queue_was_read_is_passed_over_at_once(
    pool: Pool, working: Working, seldom: XonarSettings
) -> None:
    first, cancelled, deleted, last = [
        await of(pool, "plain", *deeds) for deeds in (["wait=gate"], [], [], [])
    ]
    async with working(settings=seldom, limit=1):
        await state_is(pool, first, "Running")
        await code_is(pool, last, ReasonCode.WORKER_LIMIT)
        await pool.client.set_flow_run_state(cancelled.id, Cancelled())
        await pool.client.delete_flow_run(deleted.id)
        pool.open("gate")
        await state_is(pool, last, "Completed")
    assert await pool.state(cancelled) == "Cancelled"
    assert pool.starts(cancelled) == pool.starts(deleted) == []


async def test_a_training_outlives_the_deletion_of_its_pool_and_of_its_deployment(
    pool: Pool, working: Working
) -> None:
    async with working() as worker:
        run, held = await of(pool, "plain", "wait=gate"), await pool.succeed()
        await state_is(pool, run, "Running")
        await state_is(pool, held, "Completed")
        await pool.client.delete_deployment(pool.deployments["plain"])
        await pool.client.delete_work_pool(pool.name)
        await worker._turns._reading.do_once()  # type: ignore[union-attr]
        pool.open("gate")
        await state_is(pool, run, "Completed")
        await eventually(lambda: len(worker._parts.slots) == 0)


async def test_a_parent_that_waits_on_a_held_child_is_named_on_the_child(
    pool: Pool, working: Working
) -> None:
    from prefect import task

    async with working():
        parent = await pool.succeed("wait=gate", name="sweep")
        await state_is(pool, parent, "Running")
        # As `run_deployment` does it: a task run of the parent stands for the child.
        task_run = await pool.client.create_task_run(
            task(lambda: None), parent.id, dynamic_key="child"
        )
        child = await pool.submit(
            job_variables={"command": succeed(pool.directory)}, parent_task_run_id=task_run.id
        )
        await code_is(pool, child, ReasonCode.WAITED_ON_BY_PARENT)
        reason = await state_is(pool, child, "AwaitingGPU")
        assert reason.startswith("Nothing but 'sweep' is in the way: it has started this training")
        assert "holds CPU core" in reason
        (artifact,) = await eventually(lambda: pool.artifacts(child, "xonar-decision"))
        assert artifact.description == reason
        pool.open("gate")
        await state_is(pool, child, "Completed")


async def test_a_launch_that_fails_costs_no_slot(
    pool: Pool, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = starting.start
    failures = [OSError("no space left"), OSError("no space left")]

    async def failing(launch: Any) -> Any:
        if failures:
            raise failures.pop()
        return await start(launch)

    monkeypatch.setattr(starting, "start", failing)
    async with working(limit=1) as worker:
        runs = [await of(pool, "plain") for _ in range(3)]
        await state_is(pool, runs[2], "Completed")
        await eventually(lambda: len(worker._parts.slots) == 0)
        assert len(worker._parts.submission._in_flight) == 0


async def test_a_server_that_answers_with_errors_now_and_then_costs_time_and_nothing_else(
    pool: Pool, working: Working
) -> None:
    """The client itself tries 503 ("database is locked") again; here it meets what it does not."""
    dice = random.Random(5)
    failures = 0
    async with working() as worker:
        client = worker.client._client
        send = client.send

        async def failing(request: httpx.Request, *arguments: Any, **options: Any) -> Any:
            nonlocal failures
            if dice.random() > 0.1:
                return await send(request, *arguments, **options)
            failures += 1
            if dice.random() < 0.5:
                raise httpx.ReadTimeout("too slow", request=request)
            response = httpx.Response(500, request=request)
            raise httpx.HTTPStatusError("locked", request=request, response=response)

        client.send = failing  # type: ignore[method-assign]
        runs = [await of(pool, "plain") for _ in range(8)]
        for run in runs:
            await state_is(pool, run, "Completed")
        assert failures > 5
    assert [len(pool.starts(run)) for run in runs] == [1] * 8
