from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from xonar_prefect.tasks.surrounding import Surrounding


class Record:
    """Writes down what happens around a call."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.closed_on: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        self.events.append("enter")
        try:
            yield
        finally:
            self.events.append("leave")

    def closing(self, urgent: bool) -> None:
        self.closed_on = threading.current_thread()
        self.events.append("close urgently" if urgent else "close")

    def around(self, *, isasync: bool = False, isgenerator: bool = False) -> Surrounding:
        return Surrounding(
            isasync=isasync, isgenerator=isgenerator, within=self.within, closing=self.closing
        )


ALL = ["enter", "leave", "close"]


@pytest.fixture
def record() -> Record:
    return Record()


def test_a_plain_call(record: Record) -> None:
    assert record.around().run(lambda: 5) == 5
    assert record.events == ALL


async def test_a_coroutine_is_closed_off_the_event_loop(record: Record) -> None:
    async def call() -> int:
        return 5

    assert await record.around(isasync=True).run(call) == 5
    assert record.events == ALL
    assert record.closed_on is not threading.current_thread()


def test_a_generator_with_what_is_sent_to_it_and_what_it_returns(record: Record) -> None:
    def call() -> Iterator[int]:
        got = yield 1
        yield got * 2
        return 9

    generator = record.around(isgenerator=True).run(call)
    assert record.events == []
    assert next(generator) == 1
    assert generator.send(4) == 8
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == 9
    assert record.events == ALL


async def test_an_async_generator(record: Record) -> None:
    async def call() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    items = [item async for item in record.around(isasync=True, isgenerator=True).run(call)]
    assert items == [0, 1, 2]
    assert record.events == ALL


async def test_an_async_generator_left_early_is_closed_with_what_it_holds(
    record: Record,
) -> None:
    async def call() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            record.events.append("inner closed")

    generator = record.around(isasync=True, isgenerator=True).run(call)
    assert await anext(generator) == 1
    await generator.aclose()
    assert record.events == ["enter", "inner closed", "leave", "close urgently"]


def test_an_error_passes(record: Record) -> None:
    def call() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        record.around().run(call)
    assert record.events == ALL


def test_a_cancellation_is_urgent(record: Record) -> None:
    def call() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.around().run(call)
    assert record.events[-1] == "close urgently"


async def test_a_cancelled_coroutine_is_urgent(record: Record) -> None:
    started = asyncio.Event()

    async def call() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(record.around(isasync=True).run(call))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert record.events[-1] == "close urgently"
