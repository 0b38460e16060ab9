"""Artifacts of ended runs go in time, on a real server; nothing else does."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterId
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.states import Completed, Running

from tests.worker.conftest import Pool
from xonar_prefect.core.codec import OBSERVATION_ARTIFACT_TYPE, PROFILE_ARTIFACT_TYPE
from xonar_prefect.worker import old_artifacts
from xonar_prefect.worker.old_artifacts import FOR_PEOPLE, OBSERVATIONS, OldArtifacts, PoolRuns

pytestmark = pytest.mark.server

HOUR = 3600.0


@dataclass
class Shelf:
    """The artifacts of one test."""

    pool: Pool
    now_s: float = field(default_factory=lambda: time.time() + 2 * HOUR)
    made: list[UUID] = field(default_factory=list)

    async def put(self, key: str, run: FlowRun | None, kind: str = "markdown") -> Artifact:
        artifact = await self.pool.client.create_artifact(
            ArtifactCreate(key=key, type=kind, data="-", flow_run_id=run.id if run else uuid4())
        )
        self.made.append(artifact.id)
        return artifact

    def chore(self, wanted: ArtifactFilter = FOR_PEOPLE) -> OldArtifacts:
        """Remove what is older than an hour, the clock standing two hours ahead."""
        mine = {"id": ArtifactFilterId(any_=self.made)}  # the server is that of all tests
        return OldArtifacts(
            self.pool.client,
            wanted.model_copy(update=mine),
            PoolRuns(self.pool.client, self.pool.name).not_to_touch,
            clock=lambda: self.now_s,
            keep_seconds=HOUR,
        )

    async def clean(self, wanted: ArtifactFilter = FOR_PEOPLE) -> None:
        chore = self.chore(wanted)
        for _ in range(20):
            if not await chore.step():
                return
        raise AssertionError("it does not come to an end")

    async def left(self) -> set[UUID]:
        found = await self.pool.client.read_artifacts(
            artifact_filter=ArtifactFilter(id=ArtifactFilterId(any_=self.made))
        )
        return {artifact.id for artifact in found}


@pytest.fixture
def shelf(pool: Pool) -> Shelf:
    return Shelf(pool)


async def ended(pool: Pool, **options: Any) -> FlowRun:
    run = await pool.submit(**options)
    await pool.client.set_flow_run_state(run.id, Completed(), force=True)
    return run


async def test_what_ended_runs_showed_goes_and_their_profiles_stay(
    shelf: Shelf, pool: Pool
) -> None:
    run = await ended(pool)
    for key in ("xonar-decision", "xonar-crash"):
        await shelf.put(key, run)
    stays = [
        await shelf.put("xonar-profile-digits-train", run),
        await shelf.put("xonar-profile-data-abc", run, PROFILE_ARTIFACT_TYPE),
        await shelf.put("my-xonar-notes", run),
        await shelf.put("report", run),
        await shelf.put("xonar-observation-data-abc", run, OBSERVATION_ARTIFACT_TYPE),
    ]
    await shelf.clean()
    assert await shelf.left() == {artifact.id for artifact in stays}


async def test_what_is_not_old_stays(shelf: Shelf, pool: Pool) -> None:
    await shelf.put("xonar-decision", await ended(pool))
    shelf.now_s = time.time() + HOUR / 2
    await shelf.clean()
    assert await shelf.left() == set(shelf.made)


async def test_artifacts_of_unfinished_runs_and_of_other_pools_stay(
    shelf: Shelf, pool: Pool
) -> None:
    held, running = await pool.submit(), await pool.submit()
    await pool.client.set_flow_run_state(running.id, Running(), force=True)
    for run in (held, running):
        await shelf.put("xonar-decision", run)
    theirs = await ended(pool)
    await shelf.put("xonar-decision", theirs)
    runs = PoolRuns(pool.client, "another-pool")
    assert await runs.not_to_touch([str(theirs.id)]) == {str(theirs.id)}
    assert await runs.unfinished([str(theirs.id), str(held.id)]) == {str(held.id)}
    await shelf.clean()
    assert await shelf.left() == set(shelf.made[:2])


async def test_artifacts_of_deleted_runs_go(shelf: Shelf) -> None:
    await shelf.put("xonar-decision", None)
    await shelf.clean()
    assert await shelf.left() == set()


async def test_measured_co_runs_go_by_themselves(shelf: Shelf, pool: Pool) -> None:
    run = await ended(pool)
    await shelf.put("xonar-observation-data-abc", run, OBSERVATION_ARTIFACT_TYPE)
    decision = await shelf.put("xonar-decision", run)
    await shelf.clean(OBSERVATIONS)
    assert await shelf.left() == {decision.id}


async def test_all_pages_are_looked_at_past_those_that_stay(
    shelf: Shelf, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_artifacts, "PAGE", 3)
    held, over = await pool.submit(), await ended(pool)
    for run in [held] * 4 + [over] * 5 + [held] * 2 + [over]:
        await shelf.put("xonar-decision", run)
    await shelf.clean()
    assert await shelf.left() == {*shelf.made[:4], *shelf.made[9:11]}


async def test_a_step_does_little(
    shelf: Shelf, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_artifacts, "PAGE", 2)
    run = await ended(pool)
    for _ in range(5):
        await shelf.put("xonar-decision", run)
    assert await shelf.chore().step()
    assert await shelf.left() == set(shelf.made[2:])  # the oldest first
