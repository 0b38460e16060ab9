"""Runs that a host cannot launch: back into the queue, but not for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun

from tests.worker.conftest import Pool
from xonar_prefect.core.decisions import ReasonCode, Release
from xonar_prefect.core.endings import MOST_FAILED_LAUNCHES
from xonar_prefect.core.models import Training
from xonar_prefect.core.quarantine import QuarantineCause
from xonar_prefect.store import Store
from xonar_prefect.worker.claims import AWAITING_GPU, Claims
from xonar_prefect.worker.launch_failures import LaunchFailures
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.requeueing import Requeueing
from xonar_prefect.worker.slots import Slots

pytestmark = pytest.mark.server

ERROR = OSError(11, "Resource temporarily unavailable")


@pytest.fixture
def claims(pool: Pool) -> Claims:
    return Claims(pool.client, "one")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def slots(store: Store) -> Slots:
    return Slots(store, "one", time.time)


@pytest.fixture
def quarantines(store: Store) -> Quarantines:
    return Quarantines(store, "host", time.time)


@pytest.fixture
def failures(
    pool: Pool, claims: Claims, store: Store, slots: Slots, quarantines: Quarantines
) -> LaunchFailures:
    async def max_requeues_of(_flow_run: FlowRun) -> int:
        return 0

    requeueing = Requeueing(
        pool.client, claims, store, clock=time.time, max_requeues_of=max_requeues_of
    )
    return LaunchFailures(
        pool.client,
        claims,
        requeueing,
        slots,
        quarantines,
        clock=time.time,
        first_pause_seconds=10.0,
    )


async def test_a_launch_that_fails_is_tried_again_later_but_not_for_ever(
    pool: Pool, claims: Claims, failures: LaunchFailures
) -> None:
    run = await pool.submit()
    pauses: list[tuple[float, float]] = []
    for _ in range(MOST_FAILED_LAUNCHES):
        assert await claims.claim(await pool.read(run))
        began_s = time.time()
        await failures.failed(run, ERROR)
        state = (await pool.read(run)).state
        assert state is not None
        if state.name == AWAITING_GPU and state.state_details.scheduled_time is not None:
            until_s = state.state_details.scheduled_time.timestamp()
            pauses.append((until_s - time.time(), until_s - began_s))
    assert state.name == "Crashed"
    assert "Resource temporarily unavailable" in str(state.message)
    # It counts from some moment in between.
    (low, high), (next_low, next_high) = pauses
    assert low <= 10 <= high
    assert next_low <= 20 <= next_high


async def test_a_device_takes_nothing_for_a_while_where_a_launch_failed_and_longer_the_next_time(
    pool: Pool,
    failures: LaunchFailures,
    slots: Slots,
    quarantines: Quarantines,
    tmp_path: Path,
) -> None:
    run = await pool.submit()
    release = Release(
        training=Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0),
        devices=("cpu-0",),
        code=ReasonCode.FIRST_ON_DEVICE,
        reason="It is first.",
    )
    await slots.reserve(release, "core", tmp_path)
    for pause_s in (10.0, 20.0):
        began_s = time.time()
        await failures.failed(run, ERROR)
        quarantine = quarantines.get("cpu-0", QuarantineCause.LAUNCH_FAILS)
        assert quarantine is not None
        assert began_s <= quarantine.until_s - pause_s <= time.time()
        assert "Resource temporarily unavailable" in quarantine.reason
        quarantines.end("cpu-0", QuarantineCause.LAUNCH_FAILS)


async def test_a_run_that_was_deleted_meanwhile_needs_no_end(
    pool: Pool, failures: LaunchFailures
) -> None:
    run = await pool.submit()
    await pool.client.delete_flow_run(run.id)
    await failures.failed(run, ERROR)
