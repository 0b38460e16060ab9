"""What every database under the store must keep."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlmodel import Session

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.quarantine import Quarantine, QuarantineCause
from xonar_prefect.store import Store, StoredProfile, Taken

OpenStore = Callable[[], Store]

RECIPE = Recipe(flow="digits", entrypoint="flows/digits.py:digits", task="train")
SOLO = Profile(
    key="kind-a",
    device_model="V100",
    active_fraction=0.6,
    communication_fraction=0.1,
    input_fraction=0.2,
    other_fraction=0.1,
    step_seconds=0.5,
    step_seconds_interval=(0.45, 0.55),
    active_fraction_interval=(0.58, 0.62),
    peak_memory_mib=1000,
    memory_source="nvml",
    steps=12,
    source="tensorflow",
    framework="tensorflow 2.21.0",
    device="GPU-1",
    code_version="v1",
    measured_at_s=100.0,
)
JOINT = replace(
    SOLO,
    active_fraction=0.3,
    step_seconds=None,
    step_seconds_interval=None,
    peak_memory_mib=1200,
    memory_source="allocator",
    joint=True,
)
RELEASE = LedgerEntry(
    run_id="run-1",
    name="wise-owl",
    worker="worker-1",
    state=SlotState.RESERVED,
    devices=("GPU-1", "GPU-2"),
    device_model="V100",
    request_mib=1100,
    profile_key="kind-a",
    partners=("run-0",),
    code="FITS_BESIDE_PARTNER",
    reason="fits beside wise-fox: 1100 MiB of 2000 MiB",
    predicted_slowdown=1.2,
    run_directory="/runs/run-1",
    reserved_at_s=1_700_000_000.123456,
)


def postgresql_address(schema: str) -> str:
    """Return the test database's address, confined to a schema of our own."""
    address = os.environ.get("XONAR_TEST_POSTGRESQL_URL")
    if not address:
        pytest.skip("set XONAR_TEST_POSTGRESQL_URL to run the store's contract on PostgreSQL")
    url = make_url(address).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    engine.dispose()
    return url.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(
        hide_password=False
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Open the same store again and again, as several workers and restarts do."""
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path / 'store.db'}"
    else:
        address = postgresql_address(f"xonar_{uuid.uuid4().hex}")
    opened: list[Store] = []

    def open_it() -> Store:
        opened.append(Store.open(address))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


# ---- profiles ----


def test_profile_comes_back_as_it_was_given(store: Store, open_store: OpenStore) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert open_store().profiles_for("kind-a") == {"V100": SOLO}


def test_unknown_stays_unknown(store: Store) -> None:
    bare = Profile(key="kind-b", device_model="cpu")
    store.ingest_profile("a1", bare, RECIPE, 100.0)
    assert store.profiles_for("kind-b") == {"cpu": bare}


def test_unknown_kind_has_no_profiles(store: Store) -> None:
    assert store.profiles_for("nobody") == {}
    assert store.profile_keys() == frozenset()
    assert store.profiles() == ()


def test_artifact_is_read_once(store: Store) -> None:
    assert store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert not store.ingest_profile("a1", replace(SOLO, step_seconds=9.0), RECIPE, 200.0)
    assert store.profiles_for("kind-a") == {"V100": SOLO}
    assert store.has_ingested("a1")
    assert not store.has_ingested("a2")


def test_newest_profile_of_a_device_model_wins(store: Store) -> None:
    newer = replace(SOLO, step_seconds=0.7)
    store.ingest_profile("a2", newer, RECIPE, 200.0)
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert store.profiles_for("kind-a") == {"V100": newer}


def test_each_device_model_has_its_own_profile(store: Store) -> None:
    other = replace(SOLO, device_model="A100", step_seconds=0.2)
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    store.ingest_profile("a2", other, RECIPE, 200.0)
    assert store.profiles_for("kind-a") == {"V100": SOLO, "A100": other}


def test_joint_profile_raises_the_peak_and_keeps_the_figures_measured_alone(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    store.ingest_profile("a2", JOINT, RECIPE, 200.0)
    expected = replace(SOLO, peak_memory_mib=1200, memory_source="allocator")
    assert store.profiles_for("kind-a") == {"V100": expected}


def test_other_code_version_profiles_again_but_keeps_the_peak_as_floor(store: Store) -> None:
    changed = replace(JOINT, code_version="v2", peak_memory_mib=700)
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    store.ingest_profile("a2", changed, RECIPE, 200.0)
    expected = replace(changed, peak_memory_mib=1000, memory_source="nvml")
    assert store.profiles_for("kind-a") == {"V100": expected}


def test_raised_peak_outlives_a_lower_measurement(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert store.raise_peak("kind-a", "V100", 4000)
    assert store.raise_peak("kind-a", "V100", 3000)
    store.ingest_profile("a2", SOLO, RECIPE, 200.0)
    assert store.profiles_for("kind-a")["V100"].peak_memory_mib == 4000


def test_step_time_seen_alone_completes_a_joint_profile(store: Store) -> None:
    store.ingest_profile("a1", JOINT, RECIPE, 100.0)
    assert store.set_step_seconds("kind-a", "V100", 0.4, 80)
    store.ingest_profile("a2", JOINT, RECIPE, 200.0)
    assert store.profiles_for("kind-a") == {"V100": replace(JOINT, step_seconds=0.4, steps=80)}


def test_an_import_of_less_changes_nothing(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    table = replace(SOLO, steps=0, code_version=None, framework=None, step_seconds=9.0)
    assert store.import_profile(imported(table, 200.0)) is Taken.NOT
    assert store.import_profile(imported(replace(SOLO, code_version=None), 200.0)) is Taken.NOT
    assert store.import_profile(imported(replace(JOINT, peak_memory_mib=900), 200.0)) is Taken.NOT
    (known,) = store.profiles()
    assert (known.profile, known.published_at_s) == (SOLO, 100.0)
    assert store.import_profile(imported(replace(table, peak_memory_mib=2000), 200.0)) is (
        Taken.PARTLY
    )
    assert store.profiles_for("kind-a") == {"V100": replace(SOLO, peak_memory_mib=2000)}


def test_an_import_of_more_or_newer_is_taken_in(store: Store) -> None:
    newer = replace(SOLO, step_seconds=0.7)
    assert store.import_profile(imported(SOLO, 100.0)) is Taken.WHOLLY
    assert store.import_profile(imported(SOLO, 100.0)) is Taken.NOT
    assert store.import_profile(imported(newer, 200.0)) is Taken.WHOLLY
    assert store.import_profile(imported(SOLO, 100.0)) is Taken.NOT
    assert store.profiles_for("kind-a") == {"V100": newer}


def test_what_was_measured_counts_before_a_newer_table(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    table = replace(SOLO, steps=0, code_version=None, framework=None)
    store.ingest_profile("a2", table, RECIPE, 200.0)
    assert store.profiles_for("kind-a") == {"V100": SOLO}


def test_a_recipe_from_a_file_counts_until_a_run_has_its_own(store: Store) -> None:
    wrong = replace(RECIPE, task="trian")
    guess = StoredProfile(
        profile=replace(SOLO, key="kind-b", code_version=None), recipe=wrong, published_at_s=900.0
    )
    assert store.import_profile(guess) is Taken.WHOLLY
    assert store.recipes_for(RECIPE.flow, RECIPE.entrypoint) == (wrong,)
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert store.recipes_for(RECIPE.flow, RECIPE.entrypoint) == (RECIPE,)


def imported(profile: Profile, published_at_s: float) -> StoredProfile:
    return StoredProfile(profile=profile, recipe=RECIPE, published_at_s=published_at_s)


def test_nothing_is_corrected_where_no_profile_is_known(store: Store) -> None:
    assert not store.raise_peak("kind-a", "V100", 4000)
    assert not store.set_step_seconds("kind-a", "V100", 0.4, 80)
    assert store.profiles() == ()


def test_profiles_are_listed_with_recipe_latest_first(store: Store) -> None:
    other_recipe = replace(RECIPE, task="finetune", profile_by=("model", "data.size"))
    store.ingest_profile("a1", replace(SOLO, key="kind-b"), other_recipe, 300.0)
    store.ingest_profile("a2", SOLO, RECIPE, 200.0)
    listed = store.profiles()
    assert [(each.profile.key, each.recipe, each.published_at_s) for each in listed] == [
        ("kind-b", other_recipe, 300.0),
        ("kind-a", RECIPE, 200.0),
    ]
    assert store.profile_keys() == {"kind-a", "kind-b"}


def test_latest_recipe_of_each_task_is_found_by_flow_and_entrypoint(store: Store) -> None:
    finetune = replace(RECIPE, task="finetune")
    changed = replace(RECIPE, profile_by=("model",))
    elsewhere = replace(RECIPE, entrypoint=None)
    store.ingest_profile("a1", replace(SOLO, key="kind-b"), changed, 300.0)
    store.ingest_profile("a2", SOLO, RECIPE, 200.0)
    store.ingest_profile("a3", replace(SOLO, key="kind-c"), finetune, 100.0)
    store.ingest_profile("a4", replace(SOLO, key="kind-d"), elsewhere, 400.0)
    assert store.recipes_for("digits", RECIPE.entrypoint) == (finetune, changed)
    assert store.recipes_for("digits", None) == (elsewhere,)
    assert store.recipes_for("letters", None) == ()


def test_forgotten_kind_stays_forgotten(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    store.ingest_profile("a2", replace(SOLO, key="kind-b"), RECIPE, 100.0)
    store.record_duration("kind-a", "V100", 60.0)
    for number, (mine, partner) in enumerate(
        [("kind-a", "kind-b"), ("kind-b", "kind-a"), ("kind-b", "kind-b")]
    ):
        store.ingest_observation(f"o{number}", co_run(mine, partner))
    assert store.forget("kind-a")
    assert not store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert store.profile_keys() == {"kind-b"}
    assert store.mean_duration("kind-a", "V100") is None
    assert store.observations() == (co_run("kind-b", "kind-b"),)
    assert not store.forget("kind-a")


# ---- co-runs and durations ----


def co_run(
    key: str, *partners: str, slowdown: float = 1.3, observed_at_s: float = 1.0
) -> Observation:
    return Observation(
        device_model="V100",
        profile_key=key,
        partner_keys=partners,
        slowdown=slowdown,
        steps=50,
        observed_at_s=observed_at_s,
    )


def test_observation_is_read_once_and_comes_back(store: Store) -> None:
    assert store.ingest_observation("o1", co_run("kind-a", "kind-b", "kind-c"))
    assert not store.ingest_observation("o1", co_run("kind-a", "kind-b"))
    assert store.observations() == (co_run("kind-a", "kind-b", "kind-c"),)
    assert store.has_ingested("o1")


def test_observations_of_each_combination_are_bounded_newest_first(store: Store) -> None:
    for number in range(15):
        store.ingest_observation(f"o{number}", co_run("kind-a", "kind-b", observed_at_s=number))
    store.ingest_observation("other", co_run("kind-b", "kind-a", observed_at_s=0.5))
    times = [each.observed_at_s for each in store.observations()]
    assert times == [14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 0.5]


def test_duration_is_the_mean_of_what_was_noted(store: Store) -> None:
    assert store.mean_duration("kind-a", "V100") is None
    for seconds in (10.0, 20.0, 60.0):
        store.record_duration("kind-a", "V100", seconds)
    store.record_duration("kind-a", "A100", 5.0)
    assert store.mean_duration("kind-a", "V100") == 30.0
    assert store.mean_durations() == {("kind-a", "V100"): 30.0, ("kind-a", "A100"): 5.0}


# ---- ledger ----


def test_release_comes_back_as_it_was_recorded(store: Store, open_store: OpenStore) -> None:
    store.record(RELEASE)
    assert open_store().entries() == (RELEASE,)


def test_recording_a_release_again_replaces_it(store: Store) -> None:
    ended = replace(
        RELEASE,
        state=SlotState.ENDED,
        launcher_pid=4242,
        launcher_started_ticks=2**40,
        boot_id="boot",
        launched_at_s=RELEASE.reserved_at_s + 1,
        ended_at_s=RELEASE.reserved_at_s + 60,
        exit_code=-9,
        co_runs=(
            CoRun(steps=10, seconds=4.5),
            CoRun(
                partners=("run-0",),
                partner_keys=("kind-b",),
                steps=20,
                seconds=12.0,
                predicted_slowdown=1.3,
            ),
        ),
    )
    store.record(RELEASE)
    store.record(ended)
    assert store.entries() == (ended,)


def test_second_release_of_a_run_is_another_entry(store: Store) -> None:
    again = replace(RELEASE, reserved_at_s=RELEASE.reserved_at_s + 100)
    store.record(again)
    store.record(RELEASE)
    assert store.entries(run_id="run-1") == (again, RELEASE)
    assert store.entries(1) == (again,)
    assert store.entries(run_id="run-2") == ()


def test_open_entries_are_those_whose_slot_is_not_free(store: Store) -> None:
    for number, state in enumerate(SlotState):
        store.record(replace(RELEASE, run_id=f"run-{number}", state=state))
    store.record(replace(RELEASE, run_id="elsewhere", worker="worker-2"))
    states = {entry.state for entry in store.open_entries("worker-1")}
    assert states == set(SlotState) - {SlotState.ENDED}
    assert len(store.open_entries()) == 5
    assert [entry.run_id for entry in store.entries(worker="worker-2")] == ["elsewhere"]


def test_a_name_means_one_worker_only_with_its_pool_and_host(store: Store) -> None:
    places = ((None, None), ("gpus", "box"), ("gpus", "other"), ("cpus", "box"))
    for number, (pool, host) in enumerate(places):
        store.record(replace(RELEASE, run_id=f"run-{number}", pool=pool, host=host))
    found = store.open_entries("worker-1", pool="gpus", host="box")
    # What an earlier version wrote may be its own; what is known to be another's is not.
    assert [entry.run_id for entry in found] == ["run-0", "run-1"]
    assert len(store.open_entries(host="box")) == 3


def test_every_transition_of_a_slot_is_kept_once_with_its_time(store: Store) -> None:
    life = (
        {},
        {"state": SlotState.RUNNING, "launcher_pid": 7, "launched_at_s": RELEASE.reserved_at_s + 1},
        {"request_mib": 900},
        {"state": SlotState.DRAINING, "ended_at_s": RELEASE.reserved_at_s + 60, "exit_code": 1},
        {"state": SlotState.VACATED, "freed_at_s": RELEASE.reserved_at_s + 61},
        {"state": SlotState.ENDED, "concluded_at_s": RELEASE.reserved_at_s + 90},
    )
    entry = RELEASE
    for changes in life:
        entry = replace(entry, **changes)
        store.record(entry)
        store.record(entry)
    steps = store.transitions(run_id="run-1")
    assert [(step.state, step.at_s - RELEASE.reserved_at_s) for step in steps] == [
        (SlotState.RESERVED, 0),
        (SlotState.RUNNING, 1),
        (SlotState.DRAINING, 60),
        (SlotState.VACATED, 61),
        (SlotState.ENDED, 90),
    ]
    running, draining = steps[1], steps[2]
    assert (running.devices, running.request_mib, running.partners) == (
        RELEASE.devices,
        1100,
        ("run-0",),
    )
    assert (draining.launcher_pid, draining.request_mib, draining.exit_code) == (7, 900, 1)
    assert store.transitions(2) == steps[3:]
    assert store.transitions(run_id="run-2") == ()


# ---- quarantines ----

QUARANTINE = Quarantine(
    host="box",
    device="GPU-1",
    cause=QuarantineCause.MEMORY_NOT_BACK,
    reason="900 MiB of wise-owl are not free",
    begun_at_s=100.5,
    until_s=200.0,
    pids=(7, 8),
    used_mib=120,
)


def test_a_quarantine_lasts_over_restarts_until_it_is_ended(
    store: Store, open_store: OpenStore
) -> None:
    store.record_quarantine(QUARANTINE)
    store.record_quarantine(replace(QUARANTINE, host="elsewhere"))
    assert open_store().open_quarantines("box") == (QUARANTINE,)
    ended = replace(QUARANTINE, ended_at_s=150.0)
    store.record_quarantine(ended)
    assert store.open_quarantines("box") == ()
    assert store.quarantines("box") == (ended,)
    assert store.quarantines("box", since_s=101.0) == ()


def test_a_device_may_have_several_quarantines(store: Store) -> None:
    by_hand = replace(QUARANTINE, cause=QuarantineCause.BY_HAND, begun_at_s=50.0)
    again = replace(QUARANTINE, begun_at_s=300.0)
    for each in (again, QUARANTINE, by_hand):
        store.record_quarantine(each)
    assert store.open_quarantines("box") == (by_hand, QUARANTINE, again)


# ---- several workers ----


def test_workers_that_open_an_empty_store_at_once_all_succeed(open_store: OpenStore) -> None:
    ready = threading.Barrier(4)

    def open_at_once(_: int) -> int:
        ready.wait()
        return len(open_store().profiles())

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(open_at_once, range(4))) == [0] * 4


def test_workers_that_read_the_same_artifact_at_once_count_it_once(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    ready = threading.Barrier(4)

    def ingest(store: Store) -> list[bool]:
        ready.wait()
        return [
            store.ingest_observation(f"o{number}", co_run("kind-a", "kind-b"))
            for number in range(8)
        ]

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(ingest, stores))
    assert [sum(each) for each in zip(*outcomes, strict=True)] == [1] * 8


def test_no_duration_is_lost_between_threads_and_workers(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]
    with ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                lambda number: stores[number % 2].record_duration("kind-a", "V100", float(number)),
                range(40),
            )
        )
    assert stores[0].mean_duration("kind-a", "V100") == sum(range(40)) / 40


# ---- memory seen from outside ----


def test_seen_memory_is_kept_with_the_profile_and_outlives_a_new_measurement(
    store: Store, open_store: OpenStore
) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    assert store.note_memory("kind-a", "V100", 900, 15900)
    store.ingest_profile("a2", replace(SOLO, step_seconds=0.7), RECIPE, 200.0)
    store.ingest_profile("a3", replace(SOLO, code_version="v2"), RECIPE, 300.0)
    (profile,) = open_store().profiles_for("kind-a").values()
    assert (profile.peak_host_memory_mib, profile.held_memory_mib) == (900, 15900)


def test_main_memory_is_never_lowered_and_held_memory_is_the_latest_that_is_known(
    store: Store,
) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    for seen in ((900, 15900), (400, 2100), (None, None)):
        store.note_memory("kind-a", "V100", *seen)
    profile = store.profiles_for("kind-a")["V100"]
    assert (profile.peak_host_memory_mib, profile.held_memory_mib) == (900, 2100)


def test_memory_of_an_unknown_kind_is_not_noted(store: Store) -> None:
    assert not store.note_memory("nobody", "V100", 900, 15900)


# ---- what is old ----


def test_old_releases_are_forgotten_in_portions_the_oldest_first(store: Store) -> None:
    for day in range(5):
        ended = replace(
            RELEASE,
            run_id=f"run-{day}",
            state=SlotState.ENDED,
            reserved_at_s=float(day),
            ended_at_s=day + 0.5,
        )
        store.record(ended)
    assert store.remove_ended(3.0, 2) == 2
    assert {entry.run_id for entry in store.entries()} == {"run-2", "run-3", "run-4"}
    assert store.remove_ended(3.0, 2) == 1
    assert store.remove_ended(3.0, 2) == 0
    assert {entry.run_id for entry in store.entries()} == {"run-3", "run-4"}


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.ENDED])
def test_a_release_whose_slot_is_not_free_is_never_forgotten(
    store: Store, state: SlotState
) -> None:
    store.record(replace(RELEASE, state=state, reserved_at_s=1.0, ended_at_s=2.0))
    assert store.remove_ended(1e12, 10) == 0
    assert len(store.open_entries()) == 1


def test_a_release_that_never_ran_counts_from_its_claim(store: Store) -> None:
    store.record(replace(RELEASE, state=SlotState.ENDED, reserved_at_s=1.0, ended_at_s=None))
    assert store.remove_ended(1.0, 10) == 0
    assert store.remove_ended(1.1, 10) == 1


def test_only_the_old_release_of_a_run_is_forgotten(store: Store) -> None:
    for at in (1.0, 9.0):
        store.record(replace(RELEASE, state=SlotState.ENDED, reserved_at_s=at, ended_at_s=at + 0.5))
    assert store.remove_ended(5.0, 10) == 1
    assert [entry.reserved_at_s for entry in store.entries()] == [9.0]


def test_old_co_runs_are_forgotten_and_profiles_stay(store: Store) -> None:
    store.ingest_profile("a1", SOLO, RECIPE, 100.0)
    for day in range(4):
        observed = replace(co_run("kind-a", "kind-b"), observed_at_s=float(day))
        store.ingest_observation(f"o{day}", observed)
    assert store.remove_observations(2.0, 1) == 1
    assert store.remove_observations(2.0, 5) == 1
    assert [each.observed_at_s for each in store.observations()] == [3.0, 2.0]
    assert [store.has_ingested(f"o{day}") for day in range(4)] == [False, False, True, True]
    assert store.profile_keys() == {"kind-a"}
    assert store.has_ingested("a1")


def test_transitions_of_forgotten_releases_and_old_quarantines_are_forgotten_too(
    store: Store,
) -> None:
    old = replace(RELEASE, run_id="old", state=SlotState.ENDED, ended_at_s=10.0)
    store.record(old)
    store.record(replace(RELEASE, run_id="new"))
    for device, ended_at_s in (("GPU-1", 10.0), ("GPU-2", 30.0), ("GPU-3", None)):
        store.record_quarantine(replace(QUARANTINE, device=device, ended_at_s=ended_at_s))
    assert store.remove_ended(20.0, 10) == 1
    assert {step.run_id for step in store.transitions()} == {"new"}
    assert [each.device for each in store.quarantines("box")] == ["GPU-2", "GPU-3"]


def test_a_connection_that_is_lost_in_a_transaction_is_made_anew(open_store: OpenStore) -> None:
    store = open_store()
    if store._database._engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no connection to lose")
    attempts: list[int] = []

    def work(session: Session) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    store._database.write(work)
    store.record(RELEASE)
    assert len(attempts) == 3
    assert store.entries() == (RELEASE,)
