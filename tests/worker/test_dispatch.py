"""Decisions carried out: who is told what, and what happens when something is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    ReasonCode,
    Release,
)
from xonar_prefect.core.hosts import Disk, Host, HostResident
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import (
    Limits,
    Profile,
    Snapshot,
    Training,
)
from xonar_prefect.core.policies import policy_named
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.run_directory import Status
from xonar_prefect.store import Store
from xonar_prefect.worker.dispatch import Dispatch
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.limits import Occupant
from xonar_prefect.worker.queue_picture import QueueReading
from xonar_prefect.worker.slots import Slot, Slots
from xonar_prefect.worker.turns import Turns
from xonar_prefect.worker.wiring import Parts


@dataclass
class World:
    """What surrounds a dispatch: the clock, the queue, the devices, and what it did."""

    now_s: float = 1000.0
    queue: list[FlowRun] = field(default_factory=list)
    devices: tuple[DeviceReading, ...] = (
        DeviceReading(id="cpu-0", index=0, model="core", memory_mib=8000),
    )
    request_mib: int | None = 100
    kinds: Mapping[str, Profile] = field(default_factory=dict)
    disk_is_full: bool = False
    host: Host = field(default_factory=Host)
    converted: int = 0
    running: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    held: dict[str, ReasonCode] = field(default_factory=dict)
    released: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def submit_run(self, name: str) -> FlowRun:
        run = FlowRun(id=uuid4(), flow_id=uuid4(), name=name, state=Scheduled())
        self.queue.append(run)
        return run

    # The clock
    def __call__(self) -> float:
        return self.now_s


class FakePicture:
    """The queue of the world, as it is known."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reading(
        self, limits: Limits, *, running: Iterable[Occupant], unfinished: Iterable[Occupant]
    ) -> QueueReading:
        world = self._world
        world.running = [each.run_id for each in running]
        world.unfinished = [each.run_id for each in unfinished]
        runs = {str(run.id): run for run in world.queue}
        return QueueReading(
            trainings={
                run_id: Training(
                    run_id=run_id,
                    name=run.name,
                    submitted_at_s=float(place),
                    memory_request_mib=None if world.kinds else world.request_mib,
                    profile_key=next((each.key for each in world.kinds.values()), None),
                    profiles=world.kinds,
                )
                for place, (run_id, run) in enumerate(runs.items())
            },
            flow_runs=runs,
            refusals={},
            limits=limits,
            limited={},
        )

    def released(self, run_ids: Sequence[str]) -> None:
        self._world.queue = [run for run in self._world.queue if str(run.id) not in run_ids]

    async def convert_again(self) -> None:
        self._world.converted += 1


class FakeHeldRuns:
    """Knows nothing new of any kind, but for its memory."""

    async def renewed(self, training: Training) -> Training:
        return replace(training, memory_request_mib=300, profile_key="kind")


class FakeTelling:
    """Writes down in the world what would be told."""

    def __init__(self, world: World) -> None:
        self._world = world

    def decided(
        self, decisions: Sequence[Decision], releases: Sequence[Release], queue: QueueReading
    ) -> None:
        world = self._world
        world.held = {each.training.name: each.code for each in decisions if isinstance(each, Hold)}
        world.released.update({each.training.name: each.partners for each in releases})


class FakeHost:
    """Reads the host of the world."""

    disk = SimpleNamespace(doubt=lambda: None)

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, slots: Sequence[Slot]) -> Host:
        residents = tuple(HostResident(training=slot.training) for slot in slots)
        return replace(self._world.host, residents=residents)


class FakeStore(Store):
    """A real store whose disk can be full."""

    world: World

    def record(self, entry: LedgerEntry) -> None:
        if self.world.disk_is_full:
            raise StoreUnusableError("sqlite:///store.db", "the disk is full")
        super().record(entry)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World, tmp_path: Path) -> Iterator[Store]:
    with FakeStore.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert isinstance(store, FakeStore)
        store.world = world
        yield store


@pytest.fixture
def slots(store: Store, world: World) -> Slots:
    return Slots(store, "one", world)


Make = Callable[..., Dispatch]


@pytest.fixture
def in_flight() -> LaunchesInFlight:
    return LaunchesInFlight()


@pytest.fixture
def make(
    world: World, store: Store, slots: Slots, in_flight: LaunchesInFlight, tmp_path: Path
) -> Make:
    async def submit(flow_runs: Sequence[FlowRun]) -> None:
        world.submitted += [run.name for run in flow_runs]

    async def read_devices() -> tuple[DeviceReading, ...]:
        return world.devices

    def make(**changes: Any) -> Dispatch:
        parts: dict[str, Any] = {
            "policy": policy_named("parallel"),
            "read_devices": read_devices,
            "store": store,
            "slots": slots,
            "picture": FakePicture(world),
            "held_runs": FakeHeldRuns(),
            "host": FakeHost(world),
            "telling": FakeTelling(world),
            "in_flight": in_flight,
            "submit": submit,
            "limits": Limits(),
            "training_limit": None,
            "max_starting": 8,
            "runs_without_device": 4,
            "runs_directory": tmp_path / "runs",
            "clock": world,
        }
        return Dispatch(**{**parts, **changes})

    return make


async def test_what_is_released_is_reserved_written_down_and_submitted_once(
    world: World, make: Make, slots: Slots, store: Store
) -> None:
    dispatch = make()
    first, second, third = (world.submit_run(name) for name in ("a", "b", "c"))
    queue = list(world.queue)
    assert await dispatch.decide() == [first, second]
    assert world.submitted == ["a", "b"]
    assert {entry.name: entry.state for entry in store.open_entries()} == {
        "a": SlotState.RESERVED,
        "b": SlotState.RESERVED,
    }
    assert world.released == {"a": (), "b": (str(first.id),)}
    assert world.held == {"c": ReasonCode.NO_FREE_SLOT}
    assert await dispatch.decide() == []
    world.queue = queue  # the server may still show them as held
    assert await dispatch.decide() == []
    assert world.submitted == ["a", "b"]
    assert str(third.id) not in slots


async def test_what_cannot_be_written_down_is_not_started(
    world: World, make: Make, slots: Slots
) -> None:
    world.submit_run("a")
    world.disk_is_full = True
    dispatch = make()
    assert await dispatch.decide() == []
    assert (world.submitted, world.released, len(slots)) == ([], {}, 0)
    world.disk_is_full = False
    await dispatch.decide()
    assert world.submitted == ["a"]


async def test_while_no_device_can_be_read_nothing_is_released_or_refused(
    world: World, make: Make
) -> None:
    world.submit_run("a")
    devices, world.devices = world.devices, ()
    dispatch = make()
    assert await dispatch.decide() == []
    assert world.held == {"a": ReasonCode.NO_DEVICE}
    world.devices = devices
    await dispatch.decide()
    assert world.submitted == ["a"]


async def test_the_limit_of_the_worker_counts_what_holds_a_device(
    world: World, make: Make, slots: Slots
) -> None:
    for name in ("a", "b"):
        world.submit_run(name)
    dispatch = make(training_limit=1)
    await dispatch.decide()
    assert world.held == {"b": ReasonCode.WORKER_LIMIT}
    (slot,) = slots
    await slots.advance(slot, state=SlotState.VACATED)  # its run is still to be concluded
    await dispatch.decide()
    assert world.submitted == ["a", "b"]


async def test_an_ended_training_counts_against_prefects_limits_until_the_server_knows(
    world: World, make: Make, slots: Slots
) -> None:
    ended, running = world.submit_run("a"), world.submit_run("b")
    dispatch = make()
    await dispatch.decide()
    slot = slots.get(str(ended.id))
    assert slot is not None
    await slots.advance(slot, state=SlotState.VACATED)
    await dispatch.decide()
    assert world.running == [str(running.id)]
    assert world.unfinished == [str(ended.id), str(running.id)]


async def test_after_a_long_downtime_what_is_due_starts_a_few_at_a_time(
    world: World, make: Make, slots: Slots
) -> None:
    world.devices = tuple(
        DeviceReading(id=f"cpu-{index}", index=index, model="core", memory_mib=8000)
        for index in range(9)
    )
    for number in range(71):
        world.submit_run(f"run {number}")
    dispatch = make(max_starting=4)
    batches = []
    while batch := await dispatch.decide():
        batches.append(len(batch))
        assert await dispatch.decide() == []  # not before those have begun
        for slot in slots:
            slot.status = Status(phase="training")
    assert batches == [4, 4, 4, 4, 2]  # two on each device


async def test_a_new_profile_counts_for_the_running_training_and_for_all_that_are_held(
    world: World, make: Make, slots: Slots
) -> None:
    world.submit_run("a")
    dispatch = make()
    await dispatch.decide()
    (slot,) = slots
    await dispatch.renew_profiles(slot)
    assert (slot.entry.request_mib, slot.entry.profile_key) == (300, "kind")
    assert world.converted == 1


async def test_a_policy_sees_free_devices_held_trainings_and_the_time(
    world: World, make: Make
) -> None:
    seen: list[Snapshot] = []

    @dataclass(frozen=True)
    class Watching:
        name: str = "watching"

        def decide(self, snapshot: Snapshot) -> tuple[Hold, ...]:
            seen.append(snapshot)
            return ()

    run = world.submit_run("a")
    await make(policy=Watching()).decide()
    (snapshot,) = seen
    assert snapshot.now_s == 1000.0
    assert [training.run_id for training in snapshot.held] == [str(run.id)]
    assert [device.id for device in snapshot.devices] == ["cpu-0"]
    assert snapshot.limits.free_slots_without_device == 4


# ---- the host around the devices ----


async def test_a_full_disk_stops_releases_and_they_go_on_by_themselves(
    world: World, make: Make
) -> None:
    world.submit_run("a")
    full = Disk(path="/home", free_mib=10, least_free_mib=1024)
    world.host = Host(disk=full)
    dispatch = make()
    assert await dispatch.decide() == []
    assert world.held == {"a": ReasonCode.DISK_FULL}
    world.host = Host(disk=replace(full, free_mib=2048))
    await dispatch.decide()
    assert world.submitted == ["a"]


async def test_what_was_released_counts_on_the_host_from_then_on(world: World, make: Make) -> None:
    world.host = Host(memory_mib=4000, share_mib=3000)
    dispatch = make()
    first, second = (world.submit_run(name) for name in ("a", "b"))
    assert await dispatch.decide() == [first]
    assert world.held == {"b": ReasonCode.INSUFFICIENT_HOST_MEMORY}
    assert await dispatch.decide() == []
    assert second in world.queue


async def test_no_more_trainings_start_at_once_than_the_setting_says(
    world: World, make: Make, slots: Slots
) -> None:
    dispatch = make(max_starting=1)
    first, second = (world.submit_run(name) for name in ("a", "b"))
    assert await dispatch.decide() == [first]
    assert world.held == {"b": ReasonCode.STARTS_LIMITED}
    assert await dispatch.decide() == []
    slot = slots.get(str(first.id))
    assert slot is not None
    slot.status = Status(phase="training")  # it has begun
    assert await dispatch.decide() == [second]


async def test_a_training_that_never_reports_does_not_count_as_starting_for_ever(
    world: World, make: Make
) -> None:
    dispatch = make(max_starting=1)
    _, second = (world.submit_run(name) for name in ("a", "b"))
    await dispatch.decide()
    world.now_s += 31
    assert await dispatch.decide() == [second]


# ---- memory feasibility while others decide ----


async def test_decisions_that_are_taken_at_once_never_give_memory_away_twice(
    world: World, make: Make, slots: Slots
) -> None:
    limits = Limits(max_trainings_per_gpu=16)
    turns = Turns(
        cast("Parts", quiet_parts(make(limits=limits, max_starting=99))),
        clock=world,
        poll_seconds=10.0,
        watch_seconds=1.0,
        is_synced=lambda: True,
    )
    world.request_mib = 900  # eight of them fit into 8000 MiB
    for number in range(12):
        world.submit_run(f"t{number}")
    await asyncio.gather(*(turns.take() for _ in range(6)))
    assert len(world.submitted) == len(set(world.submitted)) == len(slots) == 8
    assert set(world.held.values()) == {ReasonCode.INSUFFICIENT_MEMORY}


async def test_twice_too_many_trainings_wait_instead_of_failing(
    world: World, make: Make, slots: Slots
) -> None:
    world.request_mib = 8000  # a whole device each
    dispatch = make()
    runs = [world.submit_run(f"t{number}") for number in range(10)]
    for run in runs:
        assert await dispatch.decide() == [run]
        held = set(world.held.values())
        assert held == ({ReasonCode.INSUFFICIENT_MEMORY} if run is not runs[-1] else set())
        assert await dispatch.decide() == []
        await slots.free(next(iter(slots)))


def quiet_parts(dispatch: Dispatch) -> object:
    """Parts of a worker around a real dispatch, with nothing else to do."""

    async def nothing(*_: object) -> None:
        pass

    async def unchanged(*_: object) -> bool:
        return False

    class NoSlots(list[Slot]):
        async def settle(self) -> None:
            pass

    return SimpleNamespace(
        dispatch=dispatch,
        devices=SimpleNamespace(look=nothing),
        health=SimpleNamespace(look=unchanged),
        learning=SimpleNamespace(rebuild=nothing),
        recovery=SimpleNamespace(run=nothing, put_back_orphans=nothing),
        locks=SimpleNamespace(keep=lambda: None),
        claims=SimpleNamespace(settle=nothing),
        supervision=SimpleNamespace(look=unchanged),
        picture=SimpleNamespace(renew=nothing, is_trusted=True),
        slots=NoSlots(),
    )


async def test_a_kind_that_was_seen_to_take_a_whole_gpu_runs_alone_until_it_does_not(
    world: World, make: Make, slots: Slots, store: Store
) -> None:
    profile = Profile(key="greedy", device_model="core", peak_memory_mib=1000)
    recipe = Recipe(flow="f", entrypoint=None, task="train")
    store.ingest_profile("artifact", profile, recipe, 1.0)
    dispatch = make()

    async def run_one_that_takes(mib: int) -> list[str]:
        """Let one run hold so much; return who is released together afterwards."""
        world.kinds = store.profiles_for("greedy")
        world.queue = [world.submit_run("first")]
        await dispatch.decide()
        slot = next(iter(slots))
        slot.pids, slot.peak_mib = [7], mib
        plain = replace(world.devices[0], used_mib=0, used_by_pid={})
        world.devices = (replace(plain, used_mib=mib, used_by_pid={7: mib}),)
        await dispatch.decide()
        await slots.free(slot)
        world.devices = (plain,)
        world.queue = []
        await dispatch.decide()  # takes in what it was seen to hold
        world.kinds = store.profiles_for("greedy")
        world.queue = [world.submit_run("a"), world.submit_run("b")]
        before = len(world.submitted)
        await dispatch.decide()
        together = world.submitted[before:]
        for each in slots:
            await slots.free(each)
        return together

    assert await run_one_that_takes(7900) == ["a"]
    assert store.profiles_for("greedy")["core"].held_memory_mib == 7900
    assert await run_one_that_takes(1050) == ["a", "b"]
