"""Recurring work: at once when woken, never twice at a time, and nothing can end it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx
import pytest

from tests.worker.waiting import eventually
from xonar_prefect.errors import SettingsError
from xonar_prefect.worker.recurring import Recurring

HOUR = 3600.0


class Work:
    """Work that is done as often as it is, and fails while it is told to."""

    def __init__(self) -> None:
        self.times = 0
        self.wrong: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    async def __call__(self) -> None:
        self.times += 1
        self.meanwhile()
        if self.wrong is not None:
            raise self.wrong


@pytest.fixture
def work() -> Work:
    return Work()


def recurring(work: Work, **options: Any) -> Recurring:
    usual = {"every_seconds": HOUR, "most_seconds": HOUR, "spread": lambda: 0.0}
    return Recurring("Counting", work, **{**usual, **options})


@pytest.fixture
def serving() -> Iterator[Callable[[Recurring], None]]:
    tasks: list[asyncio.Future[None]] = []
    yield lambda each: tasks.append(asyncio.ensure_future(each.serve()))
    for task in tasks:
        task.cancel()


async def test_what_is_woken_works_at_once_and_once_more_if_it_is_woken_meanwhile(
    work: Work, serving: Callable[[Recurring], None]
) -> None:
    counting = recurring(work)
    serving(counting)
    await asyncio.sleep(0)
    assert work.times == 0

    def wake_once() -> None:
        work.meanwhile = lambda: None
        counting.wake_up()

    work.meanwhile = wake_once
    counting.wake_up()
    await eventually(lambda: work.times == 2)


async def test_it_is_never_done_twice_at_a_time() -> None:
    running = most = 0

    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    counting = Recurring(
        "Counting", slow, every_seconds=HOUR, most_seconds=HOUR, spread=lambda: 0.0
    )
    assert all(await asyncio.gather(*(counting.do_once() for _ in range(5))))
    assert most == 1


@pytest.mark.parametrize(
    "wrong",
    [
        httpx.ConnectError("refused"),
        SettingsError("Work pool 'gpus' is of type 'process'."),
        RuntimeError("a fault of ours"),
    ],
)
async def test_whatever_goes_wrong_is_said_and_tried_again(
    work: Work, caplog: pytest.LogCaptureFixture, wrong: Exception
) -> None:
    work.wrong = wrong
    counting = recurring(work)
    assert not await counting.do_once()
    assert str(wrong) in caplog.text
    work.wrong = None
    assert await counting.do_once()


async def test_what_takes_long_is_said_while_it_does_and_when_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="xonar_prefect")
    answered = asyncio.Event()

    async def ask() -> None:
        await answered.wait()

    asking = Recurring(
        "Asking",
        ask,
        every_seconds=HOUR,
        most_seconds=HOUR,
        spread=lambda: 0.0,
        patience_seconds=0.01,
    )
    done = asyncio.ensure_future(asking.do_once())
    await eventually(lambda: "Asking waits for more than 0.01 s" in caplog.text)
    answered.set()
    assert await done
    assert "Asking goes on after" in caplog.text

    caplog.clear()
    assert await asking.do_once()
    assert caplog.text == ""


@pytest.mark.parametrize(("dice", "factor"), [(0.0, 1.0), (1.0, 1.5)])
async def test_pauses_are_spread_and_grow_after_failures(
    work: Work,
    serving: Callable[[Recurring], None],
    monkeypatch: pytest.MonkeyPatch,
    dice: float,
    factor: float,
) -> None:
    pauses: list[float] = []
    move_on_after = anyio.move_on_after

    def noting(seconds: float) -> contextlib.AbstractContextManager[object]:
        pauses.append(seconds)
        return move_on_after(0)

    monkeypatch.setattr("xonar_prefect.worker.recurring.anyio.move_on_after", noting)
    work.wrong = httpx.ConnectError("refused")
    serving(recurring(work, every_seconds=1.0, most_seconds=8.0, spread=lambda: dice))
    await eventually(lambda: len(pauses) > 20)
    work.wrong = None
    await eventually(lambda: pauses[-1] == pytest.approx(1.0 + 0.1 * dice))
    assert pauses[:2] == [1.0, 2.0 * factor]
    assert max(pauses) == 8.0 * factor
