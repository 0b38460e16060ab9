"""The whole queue, read from a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.states import AwaitingRetry, Cancelled, Pending, Running, Scheduled
from prefect.types._datetime import now

from tests.worker.conftest import Pool
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Limits, Profile
from xonar_prefect.errors import JobVariableError
from xonar_prefect.store import Store
from xonar_prefect.worker.held_runs import HeldRuns, QueueReading, combined_profiles

LIMITS = Limits(headroom_mib=128)
MODEL = "V100"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def held_runs(pool: Pool, store: Store) -> HeldRuns:
    return HeldRuns(pool.client, store, pool.name, frozenset())


async def read(held_runs: HeldRuns) -> QueueReading:
    return await held_runs.read(LIMITS)


def learn(store: Store, key: str, recipe: Recipe, *, artifact: str = "artifact-1") -> Profile:
    profile = Profile(key=key, device_model=MODEL, active_fraction=0.5, peak_memory_mib=900)
    store.ingest_profile(artifact, profile, recipe, 1.0)
    return profile


pytestmark = pytest.mark.server


async def test_scheduled_runs_are_held_and_others_are_not(pool: Pool, held_runs: HeldRuns) -> None:
    held, pending, running, cancelled = [await pool.submit() for _ in range(4)]
    for run, state in ((pending, Pending()), (running, Running()), (cancelled, Cancelled())):
        await pool.client.set_flow_run_state(run.id, state, force=True)
    assert set((await read(held_runs)).trainings) == {str(held.id)}


async def test_runs_of_the_future_are_not_read(pool: Pool, held_runs: HeldRuns) -> None:
    later = Scheduled(scheduled_time=now("UTC") + timedelta(hours=1))
    await pool.submit(state=later)
    assert (await read(held_runs)).trainings == {}


async def test_a_run_that_waits_in_its_process_to_be_tried_again_is_not_held(
    pool: Pool, held_runs: HeldRuns
) -> None:
    run = await pool.submit()
    policy = run.empirical_policy.model_copy(update={"retry_type": "in_process"})
    await pool.client.update_flow_run(run.id, empirical_policy=policy)
    await pool.client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    assert (await read(held_runs)).trainings == {}


async def test_more_runs_than_the_server_returns_at_once_are_all_read(
    pool: Pool, held_runs: HeldRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xonar_prefect.worker.held_runs._PAGE", 3)  # the server's cap is 200
    submitted = {str((await pool.submit()).id) for _ in range(9)}
    reading = await read(held_runs)
    assert set(reading.trainings) == set(reading.flow_runs) == submitted


async def test_a_training_is_what_its_run_and_its_deployment_say(
    pool: Pool, held_runs: HeldRuns
) -> None:
    deployment = await pool.deploy("big", job_variables={"gpus": 2, "memory_request_mib": 700})
    run = await pool.submit(
        deployment="big", name="mine", job_variables={"memory_request_mib": 900, "exclusive": True}
    )
    training = (await read(held_runs)).trainings[str(run.id)]
    assert (training.name, training.gpus, training.exclusive) == ("mine", 2, True)
    assert training.memory_request_mib == 900
    assert training.deployment == str(deployment)
    assert run.expected_start_time is not None
    assert training.submitted_at_s == pytest.approx(run.expected_start_time.timestamp())
    assert (training.profile_key, training.profiles) == (None, {})


async def test_the_priority_of_a_training_is_that_of_its_queue(
    pool: Pool, held_runs: HeldRuns
) -> None:
    # The default queue has priority 1 and moves down when another takes its place.
    await pool.client.create_work_queue("urgent", work_pool_name=pool.name, priority=1)
    await pool.deploy("urgent", work_queue_name="urgent")
    slow, fast = await pool.submit(), await pool.submit(deployment="urgent")
    trainings = (await read(held_runs)).trainings
    assert trainings[str(fast.id)].queue == "urgent"
    assert trainings[str(fast.id)].priority < trainings[str(slow.id)].priority


async def test_only_the_queues_that_are_served_are_read(pool: Pool, store: Store) -> None:
    await pool.client.create_work_queue("night", work_pool_name=pool.name)
    await pool.deploy("night", work_queue_name="night")
    await pool.submit()
    run = await pool.submit(deployment="night")
    reading = await read(HeldRuns(pool.client, store, pool.name, frozenset(["night"])))
    assert set(reading.trainings) == {str(run.id)}


async def test_rules_of_the_settings_stay_where_prefect_limits_nothing(
    held_runs: HeldRuns,
) -> None:
    assert (await read(held_runs)).limits == LIMITS


async def test_a_paused_pool_and_paused_queues_are_rules(pool: Pool, held_runs: HeldRuns) -> None:
    queue = await pool.client.create_work_queue("night", work_pool_name=pool.name)
    await pool.client.update_work_queue(queue.id, is_paused=True)
    assert (await read(held_runs)).limits.paused_queues == {"night"}
    assert not (await read(held_runs)).limits.pool_paused
    await pool.update(is_paused=True)
    assert (await read(held_runs)).limits.pool_paused


async def test_concurrency_limits_leave_what_is_not_occupied(
    pool: Pool, held_runs: HeldRuns
) -> None:
    await pool.update(concurrency_limit=5)
    await pool.client.create_work_queue("night", work_pool_name=pool.name, concurrency_limit=2)
    limited = await pool.deploy("night", work_queue_name="night", concurrency_limit=3)
    running = await pool.submit(deployment="night")
    await pool.client.set_flow_run_state(running.id, Running(), force=True)
    pending = await pool.submit()
    await pool.client.set_flow_run_state(pending.id, Pending(), force=True)
    held, free = await pool.submit(deployment="night"), await pool.submit()
    reading = await read(held_runs)
    assert reading.limits.free_slots == 3
    assert reading.limits.free_slots_by_queue == {"night": 1}
    assert reading.limits.free_slots_by_deployment == {str(limited): 2}
    # To claim it only to mark it would take a slot of its deployment.
    assert reading.unmarkable == {str(held.id)}
    assert set(reading.trainings) == {str(held.id), str(free.id)}


async def test_a_misspelt_job_variable_is_a_refusal_that_stops_nobody_else(
    pool: Pool, held_runs: HeldRuns
) -> None:
    wrong = await pool.submit(job_variables={"memory_request_mb": 900})
    right = await pool.submit()
    reading = await read(held_runs)
    assert set(reading.trainings) == {str(right.id)}
    assert reading.refusals == {
        str(wrong.id): (
            "There is no job variable 'memory_request_mb'; did you mean 'memory_request_mib'?"
        )
    }
    with pytest.raises(JobVariableError):
        await held_runs.training_of(wrong)


async def test_a_known_profile_is_attached_with_the_flows_defaults_filled_in(
    pool: Pool, held_runs: HeldRuns, store: Store
) -> None:
    recipe = Recipe(
        flow="train", entrypoint="train.py:train", task="fit", profile_by=("kind", "size.batch")
    )
    key = recipe.key_for({"kind": "plain", "size": {"batch": 8}}, 1)
    profile = learn(store, key, recipe)
    schema = {"properties": {"kind": {"default": "plain"}, "size": {"default": {"batch": 8}}}}
    await pool.deploy("schema", parameter_openapi_schema=schema)
    known = await pool.submit(deployment="schema")
    given = await pool.submit(deployment="schema", parameters={"kind": "plain"})
    other = await pool.submit(deployment="schema", parameters={"size": {"batch": 16}})
    trainings = (await read(held_runs)).trainings
    for run in (known, given):
        assert trainings[str(run.id)].profile_key == key
        assert trainings[str(run.id)].profiles == {MODEL: profile}
    assert trainings[str(other.id)].profile_key not in (key, None)
    assert trainings[str(other.id)].profiles == {}


async def test_a_recipe_of_an_older_version_of_the_flow_is_passed_over(
    pool: Pool, held_runs: HeldRuns, store: Store
) -> None:
    old = Recipe(flow="train", entrypoint="train.py:train", task="fit", profile_by=("gone",))
    learn(store, old.key_for({"gone": 1}, 1), old)
    run = await pool.submit()
    assert (await read(held_runs)).trainings[str(run.id)].profile_key is None


async def test_what_was_learnt_since_the_reading_counts_for_a_running_training(
    pool: Pool, held_runs: HeldRuns, store: Store
) -> None:
    run = await pool.submit(parameters={"kind": "plain"})
    training = (await read(held_runs)).trainings[str(run.id)]
    recipe = Recipe(flow="train", entrypoint="train.py:train", task="fit", profile_by=("kind",))
    profile = learn(store, recipe.key_for({"kind": "plain"}, 1), recipe)
    renewed = await held_runs.renewed(training)
    assert renewed == replace(training, profile_key=profile.key, profiles={MODEL: profile})
    await pool.client.delete_flow_run(run.id)
    assert await held_runs.renewed(training) == training


def test_a_run_with_several_tasks_needs_the_most_memory_and_is_as_active_as_the_busiest() -> None:
    quick = Profile(key="a", device_model=MODEL, active_fraction=0.2, peak_memory_mib=900)
    busy = Profile(key="b", device_model=MODEL, active_fraction=0.8, peak_memory_mib=300)
    combined = combined_profiles([{MODEL: quick, "K80": quick}, {MODEL: busy}])
    assert combined == {MODEL: replace(busy, peak_memory_mib=900)}
    unknown = replace(busy, peak_memory_mib=None)
    assert combined_profiles([{MODEL: quick}, {MODEL: unknown}])[MODEL].peak_memory_mib is None
    assert combined_profiles([]) == {}


async def test_what_a_training_asks_of_its_host_stands_in_its_job_variables(
    pool: Pool, held_runs: HeldRuns
) -> None:
    asks = {"host_memory_mib": 4000, "cpu_threads": 2, "shared_memory_mib": 64}
    plain, asking = await pool.submit(), await pool.submit(job_variables=asks)
    trainings = (await read(held_runs)).trainings
    for name, value in asks.items():
        assert getattr(trainings[str(plain.id)], name) is None
        assert getattr(trainings[str(asking.id)], name) == value


@pytest.mark.parametrize(
    "variables",
    [
        {"memory_elastic": True},
        {"env": {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}},
        {"env.XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
    ],
)
async def test_a_training_that_takes_what_memory_it_finds_is_known(
    pool: Pool, held_runs: HeldRuns, variables: dict[str, object]
) -> None:
    plain, elastic = await pool.submit(), await pool.submit(job_variables=variables)
    trainings = (await read(held_runs)).trainings
    assert not trainings[str(plain.id)].memory_elastic
    assert trainings[str(elastic.id)].memory_elastic
