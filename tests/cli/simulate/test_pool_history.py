from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.conftest import Pool, Xonar
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.core.models import Profile
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("prefect_server")]

STEP_SECONDS = 0.1


def completed(pool: Pool, store: Store, directory: Path, name: str, at_s: float) -> None:
    """Leave the traces of a run that made 100 steps in 20 s after 5 s of starting up."""
    from prefect.states import Completed

    run_id = pool.submit(name, state=Completed())
    (directory / name).mkdir()
    RunDirectory(directory / name).write(
        Status(phase="done", steps_done=100, stepping_seconds=20.0)
    )
    store.record(
        LedgerEntry(
            run_id=run_id,
            name=name,
            worker="w",
            state=SlotState.ENDED,
            devices=("GPU-1",),
            device_model="V100",
            profile_key="k",
            run_directory=str(directory / name),
            reserved_at_s=at_s,
            ended_at_s=at_s + 25,
            co_runs=(CoRun(partners=("x",), partner_keys=("k",), steps=90, seconds=18.0),),
        )
    )


@pytest.fixture
def history(pool: Pool, store: Store, tmp_path: Path) -> Pool:
    profile = Profile(
        key="k",
        device_model="V100",
        active_fraction=0.5,
        step_seconds=STEP_SECONDS,
        peak_memory_mib=1000,
        steps=100,
    )
    recipe = Recipe(flow="flow", entrypoint=None, task="train")
    store.ingest_profile("a", profile, recipe, 1.0)
    begun_at_s = time.time() - 60  # by then all are there, however long submitting them takes
    for number in range(3):
        completed(pool, store, tmp_path, f"run-{number}", begun_at_s)
    return pool


def test_the_recorded_runs_are_replayed_with_what_was_measured(xonar: Xonar, history: Pool) -> None:
    found = xonar("simulate", "--from-pool", history.name, "--policy", "serial", "--json").json
    serial, parallel = found["policies"]["serial"], found["policies"]["parallel"]
    # alone each needs 5 s to start up and 10 s for its steps
    assert serial["makespan_s"] == pytest.approx(45, abs=2)
    # a pair was twice as slow as alone: 25 s, then 15 s alone
    assert parallel["makespan_s"] == pytest.approx(40, abs=2)
    assert (found["shared_pairs"], found["shared_pairs_measured"]) == (1, 1)
    assert any(note.startswith("3 of 3 completed runs") for note in found["notes"])
    assert any("Starting up took 5.0 s" in note for note in found["notes"])
    assert any("Give it with --gpus 1:V100:MEMORY_MIB" in note for note in found["notes"])
    assert not any("peak is unknown" in note for note in found["notes"])


def test_another_start_up_time_and_other_devices_may_be_asked_for(
    xonar: Xonar, history: Pool
) -> None:
    found = xonar(
        *("simulate", "--from-pool", history.name, "--policy", "serial", "--json"),
        *("--startup", "0", "--gpus", "3:V100:16000"),
    ).json
    assert found["devices"] == 3
    assert found["policies"]["serial"]["makespan_s"] == pytest.approx(10, abs=2)


def test_runs_whose_release_this_store_does_not_know_are_said_to_be_left_out(
    xonar: Xonar, history: Pool
) -> None:
    from prefect.states import Completed

    history.submit("elsewhere", state=Completed())
    found = xonar("simulate", "--from-pool", history.name, "--json").json
    assert any(note.startswith("3 of 4 completed runs") for note in found["notes"])


def test_a_pool_without_history_has_nothing_to_replay(xonar: Xonar, pool: Pool) -> None:
    ended = xonar("simulate", "--from-pool", pool.name)
    assert ended.status == 1
    assert f"nothing to replay of the work pool '{pool.name}'" in ended.errors


def test_an_unknown_pool_is_named(xonar: Xonar) -> None:
    ended = xonar("simulate", "--from-pool", "nowhere")
    assert (ended.status, "There is no work pool 'nowhere'" in ended.errors) == (1, True)
