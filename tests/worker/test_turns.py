"""Turns: when a worker looks, when it decides, and that nothing can end it."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.worker.waiting import eventually
from xonar_prefect.errors import SettingsError
from xonar_prefect.worker.turns import Turns
from xonar_prefect.worker.wiring import Parts


class FakeSlots(list[SimpleNamespace]):
    """Slots that are all written down."""

    async def settle(self) -> None:
        pass


class FakeParts:
    """The parts of a worker, as far as turns see them; writes down what is asked of it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.synced = True
        self.changed = False
        self.device_is_back = False
        self.wrong: Exception | None = None
        self.calls: list[str] = []
        self.watched: list[int] = []
        self.slots = FakeSlots(
            SimpleNamespace(entry=SimpleNamespace(launcher_pid=pid)) for pid in (7, None)
        )
        self.learning = SimpleNamespace(rebuild=self._noting("rebuild"))
        self.recovery = SimpleNamespace(
            run=self._noting("recover"), put_back_orphans=self._noting("orphans")
        )
        self.locks = SimpleNamespace(keep=lambda: None)
        self.claims = SimpleNamespace(settle=self._noting("settle"))
        self.supervision = SimpleNamespace(look=self._look, take_over=lambda slot: None)
        self.devices = SimpleNamespace(look=None)
        self.health = SimpleNamespace(look=self._look_at_devices)
        self.dispatch = SimpleNamespace(decide=self._decide, has_more_to_explain=False)
        self.exits = SimpleNamespace(watch=self.watched.append)

    def _noting(self, name: str) -> Any:
        async def call() -> None:
            self.calls.append(name)

        return call

    async def _look(self, read_devices: object) -> bool:
        self.calls.append("look")
        if self.wrong is not None:
            raise self.wrong
        return self.changed

    async def _look_at_devices(self) -> bool:
        return self.device_is_back

    async def _decide(self, *, fresh: bool) -> list[str]:
        self.calls.append("decide afresh" if fresh else "decide")
        return ["released"]

    def after(self) -> list[str]:
        """Return what was called since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def parts() -> FakeParts:
    return FakeParts()


@pytest.fixture
def turns(parts: FakeParts) -> Turns:
    return Turns(
        cast("Parts", parts),
        clock=lambda: parts.now_s,
        poll_seconds=10.0,
        watch_seconds=0.001,
        is_synced=lambda: parts.synced,
    )


async def test_the_first_turn_learns_recovers_and_decides(turns: Turns, parts: FakeParts) -> None:
    assert await turns.take() == ["released"]
    assert parts.after() == [
        "rebuild",
        "recover",
        "look",
        "settle",
        "orphans",
        "decide afresh",
    ]
    assert parts.watched == [7]


async def test_nothing_is_done_before_the_server_knows_the_worker(
    turns: Turns, parts: FakeParts
) -> None:
    parts.synced = False
    assert await turns.take() == []
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
    assert parts.after() == ["look", "settle", "orphans", "decide afresh"]
    await turns.take(fresh=True)
    assert parts.after() == ["look", "settle", "orphans", "decide afresh"]


async def test_a_slot_that_became_free_is_reason_to_decide_at_once(
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


async def test_what_is_left_to_explain_is_explained_in_the_next_turn(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    parts.dispatch.has_more_to_explain = True
    await turns.take()
    assert parts.after() == ["look", "decide"]


async def test_a_worker_that_ends_looks_after_its_trainings_and_releases_nothing(
    turns: Turns, parts: FakeParts
) -> None:
    await turns.take()
    parts.after()
    turns.release_nothing_more()
    parts.changed = True
    assert await turns.take(fresh=True) == []
    assert parts.after() == ["look"]


@pytest.mark.parametrize(
    "wrong",
    [
        httpx.ConnectError("refused"),
        SettingsError("Work pool 'gpus' is of type 'process'."),
        RuntimeError("a fault of ours"),
    ],
)
async def test_whatever_goes_wrong_is_said_and_tried_again(
    turns: Turns, parts: FakeParts, caplog: pytest.LogCaptureFixture, wrong: Exception
) -> None:
    parts.wrong = wrong
    assert await turns.take() is None
    assert str(wrong) in caplog.text
    parts.wrong = None
    assert await turns.take() == ["released"]


async def test_what_is_woken_takes_a_turn_at_once(parts: FakeParts) -> None:
    turns = Turns(
        cast("Parts", parts),
        clock=lambda: parts.now_s,
        poll_seconds=3600.0,
        watch_seconds=3600.0,
        is_synced=lambda: True,
    )
    serving = asyncio.ensure_future(turns.serve())
    await asyncio.sleep(0)
    assert parts.after() == []
    turns.wake_up()
    await eventually(lambda: "decide afresh" in parts.calls)
    parts.after()
    turns.wake_up()  # also during or after a turn
    await eventually(lambda: parts.calls)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def test_a_failing_turn_is_tried_again_after_growing_pauses(
    turns: Turns, parts: FakeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio

    pauses: list[float] = []
    move_on_after = anyio.move_on_after

    def noting(seconds: float) -> Any:
        pauses.append(seconds)
        return move_on_after(0)

    monkeypatch.setattr("xonar_prefect.worker.turns.anyio.move_on_after", noting)
    parts.wrong = httpx.ConnectError("refused")
    serving = asyncio.ensure_future(turns.serve())
    await eventually(lambda: len(pauses) > 20)
    parts.wrong = None
    await eventually(lambda: pauses[-1] < 0.01)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]
    assert max(pauses) == 10.0
