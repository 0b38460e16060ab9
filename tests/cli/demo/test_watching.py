from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry, Completed, Crashed, Running, Scheduled

from xonar_prefect.cli.demo.watching import Stage, Watch
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store
from xonar_prefect.worker import labels

_SUBMITTED = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class FakeClient:
    """The one call of Prefect's client that watching needs."""

    runs: dict[UUID, FlowRun] = field(default_factory=dict)

    def read_flow_runs(self, *, flow_run_filter: Any, limit: int) -> list[FlowRun]:
        wanted = flow_run_filter.id.any_
        assert len(wanted) <= limit <= 200
        return [run for run_id, run in reversed(self.runs.items()) if run_id in wanted]

    def put(self, run_id: UUID, state: State[Any], **changes: Any) -> None:
        self.runs[run_id] = FlowRun(
            id=run_id, flow_id=uuid4(), state=state, created=_SUBMITTED, **changes
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def _release(store: Store, directory: Path, run_id: UUID, **changes: Any) -> None:
    directory.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "run_id": str(run_id),
        "name": "made up",
        "worker": "demo",
        "state": SlotState.RUNNING,
        "devices": ("cpu-0",),
        "device_model": "core",
        "run_directory": str(directory),
        "reserved_at_s": _SUBMITTED.timestamp() + 7.0,
    }
    store.record(LedgerEntry(**{**values, **changes}))


def test_trainings_come_in_the_order_of_the_queue(client: FakeClient, store: Store) -> None:
    ids = [uuid4() for _ in range(3)]
    for run_id in ids:
        client.put(run_id, Scheduled())

    views = Watch(client, store, {str(each): f"t-{n}" for n, each in enumerate(ids)}).look()

    assert [view.name for view in views] == ["t-0", "t-1", "t-2"]
    assert {view.stage for view in views} == {Stage.HELD}


def test_more_trainings_than_one_reading_admits_are_all_seen(
    client: FakeClient, store: Store
) -> None:
    ids = [uuid4() for _ in range(250)]
    for run_id in ids:
        client.put(run_id, Scheduled())

    assert len(Watch(client, store, {str(each): str(each) for each in ids}).look()) == 250


def test_reason_for_holding_is_remembered_after_the_release(
    client: FakeClient, store: Store, tmp_path: Path
) -> None:
    run_id = uuid4()
    watch = Watch(client, store, {str(run_id): "quick-1"})
    held = {labels.REASON_CODE: "NO_FREE_SLOT", labels.REASON: "no slot is free"}
    client.put(run_id, Scheduled(), labels=held)
    watch.look()
    client.put(run_id, Running(), labels={labels.REASON: "it fits"})
    _release(store, tmp_path / "run", run_id)

    (view,) = watch.look()

    assert (view.held_reason, view.reason) == ("no slot is free", "it fits")
    assert view.released_at_s is not None
    assert view.released_at_s - view.submitted_at_s == 7.0


def test_training_that_is_held_again_is_not_shown_with_the_reason_of_its_release(
    client: FakeClient, store: Store
) -> None:
    run_id = uuid4()
    told = {labels.REASON_CODE: "LEAST_COMPLETION_TIME", labels.REASON: "it fits"}
    client.put(run_id, Scheduled(name="AwaitingGPU", message="it was stopped"), labels=told)

    (view,) = Watch(client, store, {str(run_id): "quick-1"}).look()

    assert (view.held_reason, view.reason) == ("it was stopped", "it was stopped")


def test_training_starts_until_its_first_step_and_then_tells_its_progress(
    client: FakeClient, store: Store, tmp_path: Path
) -> None:
    run_id = uuid4()
    watch = Watch(client, store, {str(run_id): "cnn-1"})
    client.put(run_id, Running())
    _release(store, tmp_path / "run", run_id)
    assert watch.look()[0].stage is Stage.STARTING

    RunDirectory(tmp_path / "run").write(
        Status(phase="profiling", steps_done=4, steps_total=9, peak_memory_mib=500)
    )
    (view,) = watch.look()

    assert view.stage is Stage.RUNNING
    assert (view.steps_done, view.steps_total, view.peak_memory_mib) == (4, 9, 500)
    assert view.profiling


def test_partners_share_a_device_at_this_moment(
    client: FakeClient, store: Store, tmp_path: Path
) -> None:
    one, two, elsewhere, gone, done = (uuid4() for _ in range(5))
    order = (one, two, elsewhere, gone, done)
    names = dict(zip(map(str, order), ("one", "two", "three", "four", "five"), strict=True))
    for run_id in order:
        client.put(run_id, Completed() if run_id == done else Running())
    _release(store, tmp_path / "1", one)
    _release(store, tmp_path / "2", two)
    _release(store, tmp_path / "3", elsewhere, devices=("cpu-1",))
    _release(store, tmp_path / "4", gone, state=SlotState.DRAINING)
    _release(store, tmp_path / "5", done)

    views = {view.name: view for view in Watch(client, store, names).look()}

    assert views["one"].partners == ("two",)
    assert views["two"].partners == ("one",)
    assert views["three"].partners == ()
    assert views["four"].partners == ()
    assert views["five"].partners == ()


def test_training_is_settled_when_its_slot_is_free_again(
    client: FakeClient, store: Store, tmp_path: Path
) -> None:
    run_id = uuid4()
    watch = Watch(client, store, {str(run_id): "cnn-1"})
    client.put(run_id, Completed(), end_time=_SUBMITTED.replace(minute=1))
    _release(store, tmp_path / "run", run_id, state=SlotState.DRAINING)
    draining = watch.look()[0]
    windows = (CoRun(steps=20, seconds=1.0),)
    _release(store, tmp_path / "run", run_id, state=SlotState.ENDED, co_runs=windows)
    (settled,) = watch.look()

    assert (draining.stage, draining.settled) == (Stage.ENDED, False)
    assert (settled.stage, settled.settled, settled.completed) == (Stage.ENDED, True, True)
    assert settled.ended_at_s == _SUBMITTED.timestamp() + 60.0
    assert settled.co_runs == windows


@pytest.mark.parametrize(
    ("state", "stage", "completed"),
    [(Crashed(), Stage.ENDED, False), (AwaitingRetry(), Stage.HELD, False)],
)
def test_only_final_states_end_a_training(
    client: FakeClient,
    store: Store,
    tmp_path: Path,
    state: State[Any],
    stage: Stage,
    completed: bool,
) -> None:
    run_id = uuid4()
    client.put(run_id, state)
    _release(store, tmp_path / "run", run_id, state=SlotState.ENDED)

    (view,) = Watch(client, store, {str(run_id): "cnn-1"}).look()

    assert (view.stage, view.completed) == (stage, completed)
