"""The queue of a real server, as a picture shows it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prefect import flow, task
from prefect.client.schemas.objects import FlowRun
from prefect.states import AwaitingRetry, Cancelled, Pending, Running, Scheduled
from prefect.types._datetime import now

from tests.worker.conftest import Pool
from tests.worker.waiting import eventually
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Limits
from xonar_prefect.store import Store
from xonar_prefect.worker import queue_pages, queue_picture
from xonar_prefect.worker.claims import AWAITING_GPU
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.queue_pages import QueuePages
from xonar_prefect.worker.queue_picture import QueuePicture, QueueReading
from xonar_prefect.worker.wiring import watched_queue

pytestmark = pytest.mark.server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def picture(pool: Pool, store: Store) -> QueuePicture:
    return watched_queue(pool.client, store, pool.name)


async def read(picture: QueuePicture) -> QueueReading:
    await picture.renew()
    return picture.reading(Limits(), running=(), unfinished=())


async def held(picture: QueuePicture) -> set[str]:
    return set((await read(picture)).trainings)


def ids(*runs: FlowRun) -> set[str]:
    return {str(run.id) for run in runs}


async def test_scheduled_runs_are_held_and_others_are_not(
    pool: Pool, picture: QueuePicture
) -> None:
    waiting, pending, running, cancelled = [await pool.submit() for _ in range(4)]
    for run, state in ((pending, Pending()), (running, Running()), (cancelled, Cancelled())):
        await pool.client.set_flow_run_state(run.id, state, force=True)
    assert await held(picture) == ids(waiting)


async def test_runs_of_the_future_are_not_read(pool: Pool, picture: QueuePicture) -> None:
    await pool.submit(state=Scheduled(scheduled_time=now("UTC") + timedelta(hours=1)))
    assert await held(picture) == set()


async def test_a_run_that_waits_in_its_process_to_be_tried_again_is_not_held(
    pool: Pool, picture: QueuePicture
) -> None:
    run = await pool.submit()
    policy = run.empirical_policy.model_copy(update={"retry_type": "in_process"})
    await pool.client.update_flow_run(run.id, empirical_policy=policy)
    await pool.client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    assert await held(picture) == set()


async def test_a_run_that_was_put_back_is_held_whatever_its_process_once_waited_for(
    pool: Pool, picture: QueuePicture
) -> None:
    run = await pool.submit()
    policy = run.empirical_policy.model_copy(update={"retry_type": "in_process"})
    await pool.client.update_flow_run(run.id, empirical_policy=policy)
    await pool.client.set_flow_run_state(run.id, Scheduled(name=AWAITING_GPU), force=True)
    assert await held(picture) == ids(run)


async def test_only_the_queues_that_are_served_are_read(pool: Pool, store: Store) -> None:
    await pool.client.create_work_queue("night", work_pool_name=pool.name)
    await pool.deploy("night", work_queue_name="night")
    await pool.submit()
    run = await pool.submit(deployment="night")
    deployments = Deployments(pool.client, lambda: 0.0)

    async def at_once() -> None:
        """There is nothing more urgent."""

    night = QueuePicture(
        QueuePages(pool.client, pool.name, frozenset(["night"])),
        HeldRuns(pool.client, store, pool.name, deployments),
        deployments,
        ours=tuple,
        whole_seconds=600.0,
        step_aside=at_once,
        clock=lambda: 0.0,
    )
    assert await held(night) == ids(run)


async def test_a_queue_that_the_pool_does_not_have_is_said_once(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    pages = QueuePages(pool.client, pool.name, frozenset(["defualt"]))
    assert await pages.queues() == {}
    assert await pages.queues() == {}
    (said,) = (each.getMessage() for each in caplog.records if "has no queue" in each.getMessage())
    assert "has no queue 'defualt', only 'default'; nothing is taken" in said


async def test_a_queue_of_several_pages_is_followed_through_comings_and_goings(
    pool: Pool, picture: QueuePicture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_pages, queue_picture):
        monkeypatch.setattr(module, "PAGE", 3)  # the server's cap is 200
    runs = [await pool.submit() for _ in range(8)]
    assert await held(picture) == ids(*runs)
    runs.append(await pool.submit())
    assert await held(picture) == ids(*runs)
    await pool.client.set_flow_run_state(runs[0].id, Cancelled())
    await pool.client.delete_flow_run(runs[1].id)

    async def is_followed() -> bool:
        return await held(picture) == ids(*runs[2:])

    # The whole queue is read again once it was miscounted, and then as seldom as it is slow.
    await eventually(is_followed)


async def test_a_misspelt_job_variable_is_a_refusal_that_stops_nobody_else(
    pool: Pool, picture: QueuePicture
) -> None:
    wrong = await pool.submit(job_variables={"memory_request_mb": 900})
    right = await pool.submit()
    reading = await read(picture)
    assert set(reading.trainings) == ids(right)
    (refuse,) = reading.refusals.values()
    assert (refuse.training.run_id, refuse.code) == (str(wrong.id), ReasonCode.WRONG_JOB_VARIABLE)
    assert refuse.reason == (
        "There is no job variable 'memory_request_mb'; did you mean 'memory_request_mib'?"
    )


async def test_a_run_whose_deployment_was_deleted_is_refused_and_says_so(
    pool: Pool, picture: QueuePicture
) -> None:
    deployment = await pool.deploy("doomed")
    run = await pool.submit(deployment="doomed")
    await pool.client.set_flow_run_state(run.id, Running(), force=True)
    await pool.client.delete_deployment(deployment)  # takes its scheduled runs with it
    await pool.client.set_flow_run_state(run.id, Scheduled(), force=True)  # tried again
    (refuse,) = (await read(picture)).refusals.values()
    assert (refuse.training.run_id, refuse.code) == (str(run.id), ReasonCode.DEPLOYMENT_DELETED)


async def test_deleted_runs_flows_and_deployments_are_not_held_any_more(
    pool: Pool, picture: QueuePicture
) -> None:
    flow_id = await pool.client.create_flow(flow(lambda: None, name=f"{pool.name}-other"))
    other = await pool.client.create_deployment(
        flow_id=flow_id, name="other", work_pool_name=pool.name
    )
    await pool.client.create_flow_run_from_deployment(other)
    stays, goes = await pool.submit(), await pool.submit()
    deployment = await pool.deploy("doomed")
    await pool.submit(deployment="doomed")
    assert len(await held(picture)) == 4
    await pool.client.delete_flow(flow_id)
    await pool.client.delete_deployment(deployment)
    await pool.client.delete_flow_run(goes.id)
    assert await held(picture) == ids(stays)


async def test_a_deleted_pool_has_no_queue_and_harms_nobody(
    pool: Pool, picture: QueuePicture
) -> None:
    await pool.submit()
    assert len(await held(picture)) == 1
    await pool.client.delete_work_pool(pool.name)
    assert await held(picture) == set()


async def test_a_run_that_another_run_has_started_knows_its_parent(
    pool: Pool, picture: QueuePicture
) -> None:
    parent = await pool.submit(name="parent")
    task_run = await pool.client.create_task_run(task(lambda: None), parent.id, dynamic_key="0")
    child = await pool.client.create_flow_run_from_deployment(
        pool.deployments["plain"], parent_task_run_id=task_run.id
    )
    trainings = (await read(picture)).trainings
    assert trainings[str(child.id)].parent == str(parent.id)
    assert trainings[str(parent.id)].parent is None


async def test_rules_of_the_settings_stay_where_prefect_limits_nothing(
    picture: QueuePicture,
) -> None:
    await picture.renew()
    rules = Limits(headroom_mib=128)
    assert picture.reading(rules, running=(), unfinished=()).limits == rules


async def test_a_paused_pool_and_paused_queues_are_rules(pool: Pool, picture: QueuePicture) -> None:
    queue = await pool.client.create_work_queue("night", work_pool_name=pool.name)
    await pool.client.update_work_queue(queue.id, is_paused=True)
    assert (await read(picture)).limits.paused_queues == {"night"}
    assert not (await read(picture)).limits.pool_paused
    await pool.update(is_paused=True)
    assert (await read(picture)).limits.pool_paused


async def test_concurrency_limits_leave_what_is_not_occupied(
    pool: Pool, picture: QueuePicture
) -> None:
    await pool.update(concurrency_limit=5)
    await pool.client.create_work_queue("night", work_pool_name=pool.name, concurrency_limit=2)
    limited = await pool.deploy("night", work_queue_name="night", concurrency_limit=3)
    running = await pool.submit(deployment="night")
    await pool.client.set_flow_run_state(running.id, Running(), force=True)
    pending = await pool.submit()
    await pool.client.set_flow_run_state(pending.id, Pending(), force=True)
    waiting, free = await pool.submit(deployment="night"), await pool.submit()
    reading = await read(picture)
    assert reading.limits.free_slots == 3
    assert reading.limits.free_slots_by_queue == {"night": 1}
    assert reading.limits.free_slots_by_deployment == {str(limited): 2}
    assert reading.limited == {str(limited): False}
    assert set(reading.trainings) == ids(waiting, free)
