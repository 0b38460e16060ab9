"""Turns: what an exit waits for, and what is done beside."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.worker.waiting import eventually
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.turns import Turns
from xonar_prefect.worker.wiring import Parts

HOUR = 3600.0


class FakeSlots(list[Any]):
    """Two trainings, of which one has a launcher."""

    def __init__(self, settle: Any) -> None:
        super().__init__(
            SimpleNamespace(
                entry=SimpleNamespace(launcher_pid=pid), measured_beside_partner=pid is None
            )
            for pid in (7, None)
        )
        self.settle = settle


class FakeParts:
    """The parts of a worker, as far as turns see them; writes down what is asked of it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.synced = True
        self.changed = False
        self.device_is_back = False
        self.told_of_an_end = False
        self.wrong: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.watched: list[int] = []
        self.slots = FakeSlots(self._noting("settle slots"))
        self.learning = SimpleNamespace(
            rebuild=self._noting("rebuild"), read_profiles=self._read_profiles
        )
        self.recovery = SimpleNamespace(
            run=self._noting("recover"), put_back_orphans=self._noting("orphans")
        )
        self.locks = SimpleNamespace(keep=lambda: None)
        self.claims = SimpleNamespace(settle=self._noting("settle"))
        self.supervision = SimpleNamespace(
            look=self._look, attend=self._attend, take_over=lambda slot: None
        )
        self.dispatch = SimpleNamespace(
            decide=self._noting("decide", ["released"]), renew_profiles=self._renew_profiles
        )
        self.devices = SimpleNamespace(look=None)
        self.health = SimpleNamespace(look=self._look_at_devices)
        self.picture = SimpleNamespace(
            renew=self._renew, is_trusted=False, has_deployment_limits=False
        )
        self.in_flight = LaunchesInFlight()
        self.telling = SimpleNamespace(tell=self._noting("tell"))
        self.exits = SimpleNamespace(watch=self.watched.append)

    def _noting(self, name: str, answer: object = None) -> Any:
        async def call() -> object:
            self.calls.append(name)
            if name in self.wrong:
                raise self.wrong[name]
            return answer

        return call

    async def _read_profiles(self, slot: Any, *, joint: bool) -> None:
        self.calls.append("joint profiles" if joint else "profiles")

    async def _renew_profiles(self, slot: Any) -> None:
        self.calls.append("renew")

    async def _renew(self) -> None:
        await self._noting("read")()
        self.picture.is_trusted = True

    async def _look(self, read_devices: object) -> bool:
        await self._noting("look")()
        return self.changed

    async def _look_at_devices(self) -> bool:
        return self.device_is_back

    async def _attend(self) -> bool:
        self.calls.append("attend")
        return self.told_of_an_end

    def after(self) -> list[str]:
        """Return what was called since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def parts() -> FakeParts:
    return FakeParts()


def make(parts: FakeParts, watch_seconds: float = 0.001) -> Turns:
    return Turns(
        cast("Parts", parts),
        clock=lambda: parts.now_s,
        poll_seconds=10.0 if watch_seconds < HOUR else HOUR,
        watch_seconds=watch_seconds,
        is_synced=lambda: parts.synced,
    )


@pytest.fixture
def turns(parts: FakeParts) -> Turns:
    return make(parts)


READ = ["read", "settle slots", "settle", "orphans"]


async def test_the_first_turn_learns_recovers_reads_and_decides(
    turns: Turns, parts: FakeParts
) -> None:
    assert await turns.take() == ["released"]
    # What adopted trainings have published, before the rebuilding takes it for measured alone.
    recovered = ["recover", "profiles", "joint profiles", "rebuild", "renew", "renew"]
    assert parts.after() == [*recovered, *READ, "look", "decide"]
    assert parts.watched == [7]


async def test_nothing_is_done_before_the_server_knows_the_worker(
    turns: Turns, parts: FakeParts
) -> None:
    parts.synced = False
    assert await turns.take() == ()
    assert parts.after() == []


async def test_trainings_are_looked_at_in_every_turn_and_the_queue_is_read_seldom(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    parts.now_s += 9.9
    await turns.take()
    assert parts.after() == ["look"]
    parts.now_s += 0.1
    await turns.take()
    assert parts.after() == [*READ, "look", "decide"]


async def test_between_an_exit_and_the_next_start_nothing_is_asked_of_the_server(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    parts.changed = True
    await turns.take()
    assert parts.after() == ["look", "decide"]


async def test_a_device_that_is_back_is_reason_to_decide_at_once(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    parts.device_is_back = True
    await turns.take()
    assert parts.after() == ["look", "decide"]


async def test_a_decision_that_fails_is_made_again(turns: Turns, parts: FakeParts) -> None:
    parts.wrong["decide"] = RuntimeError("a fault of ours")
    assert await turns.take() == ()
    parts.wrong.clear()
    assert await turns.take() == ["released"]


async def test_nothing_is_released_from_a_queue_that_is_not_known_or_in_doubt(
    turns: Turns, parts: FakeParts
) -> None:
    parts.wrong["read"] = httpx.ConnectError("refused")
    parts.changed = True
    assert await turns.take() == ()
    parts.wrong.clear()
    parts.now_s += 10
    assert await turns.take() == ["released"]
    parts.picture.is_trusted = False  # the pool was paused, or the server is away
    assert await turns.take() == ()


async def test_a_worker_that_ends_looks_after_its_trainings_and_releases_nothing(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    turns.release_nothing_more()
    parts.changed = True
    parts.now_s += 10
    assert await turns.take() == ()
    assert parts.after() == ["settle slots", "settle", "orphans", "look"]


async def test_an_exit_has_a_turn_taken_at_once_and_all_else_follows(parts: FakeParts) -> None:
    turns = make(parts, watch_seconds=HOUR)
    await turns.take()
    serving = asyncio.ensure_future(turns.serve())
    await eventually(lambda: "tell" in parts.calls)
    parts.after()
    parts.changed = True
    turns.wake_up()
    await eventually(lambda: {"attend", "tell"} <= set(parts.calls))
    assert parts.after()[:2] == ["look", "decide"]
    parts.changed = False
    turns.decide_again()
    await eventually(lambda: {"decide", "read"} <= set(parts.calls))
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def test_ended_trainings_are_concluded_when_the_next_one_is_launched(
    turns: Turns, parts: FakeParts
) -> None:
    parts.in_flight.begin("next")
    concluding = asyncio.ensure_future(turns._conclude())
    await asyncio.sleep(0)
    assert parts.after() == []
    parts.in_flight.end("next")
    await concluding
    assert parts.after() == ["attend"]


async def test_the_end_of_a_training_is_decided_upon_again_where_its_deployment_is_limited(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    parts.told_of_an_end = True
    await turns._conclude()
    await turns.take()
    assert "decide" not in parts.after()
    parts.picture.has_deployment_limits = True
    await turns._conclude()
    await turns.take()
    assert "decide" in parts.after()
