"""Trainings made of the runs of a real server, with what is known of their kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Pool
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Limits, Profile
from xonar_prefect.errors import JobVariableError
from xonar_prefect.store import Store
from xonar_prefect.worker import labels
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns, combined_profiles
from xonar_prefect.worker.queue_picture import QueuePicture, QueueReading
from xonar_prefect.worker.wiring import watched_queue

MODEL = "V100"

pytestmark = pytest.mark.server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def picture(pool: Pool, store: Store) -> QueuePicture:
    return watched_queue(pool.client, store, pool.name)


@pytest.fixture
def held_runs(pool: Pool, store: Store) -> HeldRuns:
    return HeldRuns(pool.client, store, pool.name, Deployments(pool.client, lambda: 0.0))


async def read(picture: QueuePicture) -> QueueReading:
    await picture.renew()
    return picture.reading(Limits(), running=(), unfinished=())


def learn(store: Store, key: str, recipe: Recipe, *, artifact: str = "artifact-1") -> Profile:
    profile = Profile(key=key, device_model=MODEL, active_fraction=0.5, peak_memory_mib=900)
    store.ingest_profile(artifact, profile, recipe, 1.0)
    return profile


async def test_a_training_is_what_its_run_and_its_deployment_say(
    pool: Pool, picture: QueuePicture
) -> None:
    deployment = await pool.deploy("big", job_variables={"gpus": 2, "memory_request_mib": 700})
    run = await pool.submit(
        deployment="big", name="mine", job_variables={"memory_request_mib": 900, "exclusive": True}
    )
    training = (await read(picture)).trainings[str(run.id)]
    assert (training.name, training.gpus, training.exclusive) == ("mine", 2, True)
    assert training.memory_request_mib == 900
    assert training.deployment == str(deployment)
    assert run.expected_start_time is not None
    assert training.submitted_at_s == pytest.approx(run.expected_start_time.timestamp())
    assert (training.profile_key, training.profiles) == (None, {})


async def test_what_ran_out_of_memory_needs_more_than_was_declared_and_in_the_end_to_be_alone(
    pool: Pool, picture: QueuePicture
) -> None:
    run = await pool.submit(job_variables={"memory_request_mib": 700})
    await pool.client.update_flow_run_labels(
        run.id, {labels.MEMORY_FLOOR_MIB: 875, labels.ALONE: True}
    )
    training = (await read(picture)).trainings[str(run.id)]
    assert (training.memory_request_mib, training.exclusive) == (875, True)


async def test_a_run_says_how_often_it_may_be_started_again(
    pool: Pool, held_runs: HeldRuns
) -> None:
    run = await pool.submit(job_variables={"max_requeues": 3})
    assert (await held_runs.variables_of(run)).max_requeues == 3
    assert (await held_runs.variables_of(await pool.submit())).max_requeues is None


async def test_the_priority_of_a_training_is_that_of_its_queue(
    pool: Pool, picture: QueuePicture
) -> None:
    # The default queue has priority 1 and moves down when another takes its place.
    await pool.client.create_work_queue("urgent", work_pool_name=pool.name, priority=1)
    await pool.deploy("urgent", work_queue_name="urgent")
    slow, fast = await pool.submit(), await pool.submit(deployment="urgent")
    trainings = (await read(picture)).trainings
    assert trainings[str(fast.id)].queue == "urgent"
    assert trainings[str(fast.id)].priority < trainings[str(slow.id)].priority


async def test_a_known_profile_is_attached_with_the_flows_defaults_filled_in(
    pool: Pool, picture: QueuePicture, store: Store
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
    trainings = (await read(picture)).trainings
    for run in (known, given):
        assert trainings[str(run.id)].profile_key == key
        assert trainings[str(run.id)].profiles == {MODEL: profile}
    assert trainings[str(other.id)].profile_key not in (key, None)
    assert trainings[str(other.id)].profiles == {}


async def test_a_recipe_of_an_older_version_of_the_flow_is_passed_over(
    pool: Pool, picture: QueuePicture, store: Store
) -> None:
    old = Recipe(flow="train", entrypoint="train.py:train", task="fit", profile_by=("gone",))
    learn(store, old.key_for({"gone": 1}, 1), old)
    run = await pool.submit()
    assert (await read(picture)).trainings[str(run.id)].profile_key is None


async def test_a_misspelt_job_variable_of_a_run_that_is_adopted_is_an_error(
    pool: Pool, held_runs: HeldRuns
) -> None:
    wrong = await pool.submit(job_variables={"memory_request_mb": 900})
    with pytest.raises(JobVariableError, match="did you mean 'memory_request_mib'"):
        await held_runs.training_of(wrong)


async def test_what_was_learnt_since_the_reading_counts_for_trainings_that_run_or_are_held(
    pool: Pool, picture: QueuePicture, held_runs: HeldRuns, store: Store
) -> None:
    run = await pool.submit(parameters={"kind": "plain"})
    training = (await read(picture)).trainings[str(run.id)]
    recipe = Recipe(flow="train", entrypoint="train.py:train", task="fit", profile_by=("kind",))
    profile = learn(store, recipe.key_for({"kind": "plain"}, 1), recipe)
    renewed = await held_runs.renewed(training)
    assert renewed == replace(
        training,
        profile_key=profile.key,
        profiles={MODEL: profile},
        parameters={"flow": "train", "kind": "plain"},
    )
    assert (await read(picture)).trainings[str(run.id)] == renewed
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
    pool: Pool, picture: QueuePicture
) -> None:
    asks = {"host_memory_mib": 4000, "cpu_threads": 2, "shared_memory_mib": 64}
    plain, asking = await pool.submit(), await pool.submit(job_variables=asks)
    trainings = (await read(picture)).trainings
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
    pool: Pool, picture: QueuePicture, variables: dict[str, object]
) -> None:
    plain, elastic = await pool.submit(), await pool.submit(job_variables=variables)
    trainings = (await read(picture)).trainings
    assert not trainings[str(plain.id)].memory_elastic
    assert trainings[str(elastic.id)].memory_elastic
