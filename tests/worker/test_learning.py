"""From artifacts on a real server into the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun

from tests.worker.conftest import Pool
from xonar_prefect.core.codec import (
    OBSERVATION_ARTIFACT_TYPE,
    PROFILE_ARTIFACT_TYPE,
    profile_to_dict,
    recipe_to_dict,
)
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.core.models import Profile, Training
from xonar_prefect.store import Store
from xonar_prefect.worker.co_runs import CoRunMeter
from xonar_prefect.worker.learning import Learning
from xonar_prefect.worker.slots import Slot

pytestmark = pytest.mark.server

MODEL = "V100"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def learning(pool: Pool, store: Store) -> Learning:
    return Learning(pool.client, store, lambda: 500.0)


@pytest.fixture
async def run(pool: Pool) -> FlowRun:
    return await pool.submit()


@pytest.fixture
def profile(pool: Pool) -> Profile:
    return Profile(
        key=f"key-{pool.name}",
        device_model=MODEL,
        active_fraction=0.5,
        step_seconds=0.1,
        steps=20,
        peak_memory_mib=900,
    )


def slot_of(run: FlowRun, profile: Profile, *co_runs: CoRun) -> Slot:
    return Slot(
        entry=LedgerEntry(
            run_id=str(run.id),
            name=run.name,
            worker="one",
            state=SlotState.DRAINING,
            device_model=MODEL,
            profile_key=profile.key,
            run_directory="/nowhere",
            reserved_at_s=0.0,
        ),
        training=Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0),
        meter=CoRunMeter(co_runs),
    )


async def publish(
    pool: Pool, run: FlowRun, profile: Profile, changes: Mapping[str, Any] | None = None
) -> UUID:
    data = {
        "version": 1,
        "profile": profile_to_dict(profile),
        "recipe": recipe_to_dict(Recipe(flow="train", entrypoint=None, task="fit")),
        **(changes or {}),
    }
    artifact = await pool.client.create_artifact(
        ArtifactCreate(
            key=f"xonar-profile-data-{profile.key}",
            type=PROFILE_ARTIFACT_TYPE,
            data=data,
            flow_run_id=run.id,
        )
    )
    return artifact.id


async def test_the_profile_of_a_running_training_is_taken_in_once(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile
) -> None:
    await publish(pool, run, profile)
    slot = slot_of(run, profile)
    assert await learning.read_profiles(slot, joint=False) == 1
    assert store.profiles_for(profile.key) == {MODEL: profile}
    assert await learning.read_profiles(slot, joint=False) == 0


async def test_beside_a_partner_only_the_memory_of_a_profile_is_its_own(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile
) -> None:
    await publish(pool, run, profile)
    await learning.read_profiles(slot_of(run, profile), joint=True)
    known = store.profiles_for(profile.key)[MODEL]
    assert (known.joint, known.step_seconds, known.peak_memory_mib) == (True, None, 900)


async def test_an_artifact_that_is_no_profile_of_ours_is_passed_over(
    pool: Pool,
    run: FlowRun,
    learning: Learning,
    store: Store,
    profile: Profile,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for wrong in ({"profile": {"key": "a"}}, {"profile": None}, {"recipe": {"flow": "a"}}):
        artifact = await publish(pool, run, profile, wrong)
        assert await learning.read_profiles(slot_of(run, profile), joint=False) == 0
        assert f"Artifact {artifact} is not a profile of ours" in caplog.text
    assert store.profiles_for(profile.key) == {}


async def test_a_lost_store_rebuilds_itself_from_the_server(
    pool: Pool, run: FlowRun, learning: Learning, profile: Profile, tmp_path: Path
) -> None:
    await publish(pool, run, profile)
    beside = CoRun(partners=("b",), partner_keys=("key-b",), steps=10, seconds=1.5)
    await learning.read_profiles(slot_of(run, profile), joint=False)
    await learning.observe(slot_of(run, profile, beside))
    with Store.open(f"sqlite:///{tmp_path / 'new.db'}") as new:
        anew = Learning(pool.client, new, lambda: 500.0)
        assert await anew.rebuild() >= 2
        assert new.profiles_for(profile.key) == {MODEL: profile}
        (observation,) = [o for o in new.observations() if o.profile_key == profile.key]
        assert observation.slowdown == pytest.approx(1.5)
        assert await anew.rebuild() == 0


async def test_what_sharing_cost_is_published_and_stored(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile
) -> None:
    await publish(pool, run, profile)
    await learning.read_profiles(slot_of(run, profile), joint=False)
    beside = CoRun(partners=("c", "b"), partner_keys=("key-c", "key-b"), steps=40, seconds=5.0)
    await learning.observe(slot_of(run, profile, beside))
    (observation,) = store.observations()
    assert observation.partner_keys == ("key-b", "key-c")
    assert (observation.slowdown, observation.steps) == (pytest.approx(1.25), 40)
    assert observation.observed_at_s == 500.0
    (artifact,) = await pool.artifacts(run, f"xonar-observation-data-{profile.key}")
    assert artifact.type == OBSERVATION_ARTIFACT_TYPE


async def test_more_steps_alone_than_were_profiled_correct_the_solo_step_time(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile
) -> None:
    await publish(pool, run, profile)
    await learning.read_profiles(slot_of(run, profile), joint=False)
    alone = CoRun(steps=100, seconds=20.0)
    beside = CoRun(partners=("b",), partner_keys=("key-b",), steps=10, seconds=3.0)
    await learning.observe(slot_of(run, profile, alone, beside))
    assert store.profiles_for(profile.key)[MODEL].step_seconds == pytest.approx(0.2)
    (observation,) = store.observations()
    assert observation.slowdown == pytest.approx(1.5)


async def test_fewer_steps_alone_than_were_profiled_correct_nothing(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile
) -> None:
    await publish(pool, run, profile)
    await learning.read_profiles(slot_of(run, profile), joint=False)
    await learning.observe(slot_of(run, profile, CoRun(steps=15, seconds=20.0)))
    assert store.profiles_for(profile.key) == {MODEL: profile}


@pytest.mark.parametrize(
    "window",
    [
        CoRun(partners=("b",), partner_keys=("key-b",), steps=9, seconds=1.5),
        CoRun(partners=("b",), partner_keys=("",), steps=50, seconds=7.5),
    ],
    ids=["too few steps", "partner of no known kind"],
)
async def test_a_window_that_says_too_little_is_not_an_observation(
    pool: Pool, run: FlowRun, learning: Learning, store: Store, profile: Profile, window: CoRun
) -> None:
    await publish(pool, run, profile)
    await learning.read_profiles(slot_of(run, profile), joint=False)
    await learning.observe(slot_of(run, profile, window))
    assert store.observations() == ()
