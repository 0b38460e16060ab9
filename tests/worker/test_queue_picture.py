"""The picture of a long queue, kept up to date bit by bit; the server is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.client.schemas.objects import FlowRun, WorkPool, WorkQueue
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from xonar_prefect.core.models import Limits, Training
from xonar_prefect.worker import queue_pages, queue_picture
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.queue_pages import Cursor, QueuePages
from xonar_prefect.worker.queue_picture import QueuePicture

PAGE = 4
LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(autouse=True, scope="module")
def short_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (queue_pages, queue_picture):
            patch.setattr(module, "PAGE", PAGE)
        patch.setattr(queue_picture, "_REST", 0)
        yield


class FakePages:
    """The queue of a server, which counts what it is asked."""

    client = None

    def __init__(self) -> None:
        self.runs: dict[str, FlowRun] = {}
        self.is_gone = False
        self.asked: list[str] = []
        self.template: dict[str, Any] = {}

    def submit(self, scheduled: datetime | None = None) -> str:
        when = scheduled or datetime.now(timezone.utc)
        run = FlowRun(
            id=uuid4(),
            flow_id=uuid4(),
            name="run",
            state=Scheduled(scheduled_time=when),
            next_scheduled_start_time=when,
        )
        self.runs[str(run.id)] = run
        return str(run.id)

    def submit_many(self, count: int) -> list[str]:
        return [self.submit(LONG_AGO + timedelta(seconds=n // 2)) for n in range(count)]

    async def pool(self) -> WorkPool:
        if self.is_gone:
            raise ObjectNotFound(Exception())
        return WorkPool(
            name="pool",
            type="xonar",
            base_job_template=self.template,
            default_queue_id=UUID(int=1),
        )

    async def queues(self) -> dict[str, WorkQueue]:
        return {}

    def _due(self) -> list[FlowRun]:
        return sorted(
            self.runs.values(), key=lambda run: (run.next_scheduled_start_time, run.id.int)
        )

    async def page(self, cursor: Cursor, until: datetime) -> list[FlowRun]:
        self.asked.append("page")
        since = cursor.since or LONG_AGO
        due = [run for run in self._due() if run.next_scheduled_start_time >= since]  # type: ignore[operator]
        return due[cursor.skip : cursor.skip + PAGE]

    async def of_runs(self, run_ids: Sequence[UUID], until: datetime) -> list[FlowRun]:
        self.asked.append("runs")
        return [self.runs[str(run_id)] for run_id in run_ids if str(run_id) in self.runs]

    async def count(self, until: datetime) -> int:
        self.asked.append("count")
        return len(self.runs)

    def after(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


class FakeHeldRuns:
    """Turns any run into a training, and counts how often."""

    def __init__(self) -> None:
        self.has_news = False
        self.converted = 0

    async def learn(self) -> bool:
        has_news, self.has_news = self.has_news, False
        return has_news

    async def training(self, flow_run: FlowRun, *_: object, parent: str | None) -> Training:
        self.converted += 1
        return Training(run_id=str(flow_run.id), name=flow_run.name, submitted_at_s=0.0)


class Watched:
    """A picture with all that surrounds it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pages = FakePages()
        self.held_runs = FakeHeldRuns()
        self.ours: list[str] = []
        self.picture = QueuePicture(
            cast("QueuePages", self.pages),
            cast("HeldRuns", self.held_runs),
            Deployments(cast("Any", None), lambda: self.now_s),
            ours=lambda: self.ours,
            whole_seconds=600.0,
            step_aside=self._step_aside,
            clock=lambda: self.now_s,
        )

    async def _step_aside(self) -> None:
        """There is nothing more urgent."""

    @property
    def known(self) -> set[str]:
        reading = self.picture.reading(Limits(), running=(), unfinished=())
        return set(reading.trainings)

    async def renew(self, seconds: float = 10.0) -> list[str]:
        """Let time pass and renew the picture; returns what the server was asked."""
        self.now_s += seconds
        self.pages.after()
        await self.picture.renew()
        return self.pages.after()


@pytest.fixture
async def long_queue() -> Watched:
    """Return a picture of eleven runs: three pages, and some were scheduled at the same time."""
    watched = Watched()
    watched.pages.submit_many(11)
    await watched.renew()
    return watched


async def test_a_long_queue_is_read_as_a_whole_once_and_then_only_what_is_new(
    long_queue: Watched,
) -> None:
    assert long_queue.known == set(long_queue.pages.runs)
    for _ in range(5):
        long_queue.pages.submit()
        assert await long_queue.renew() in (["page", "count"], ["page", "page", "count"])
        assert long_queue.known == set(long_queue.pages.runs)
    assert (await long_queue.renew(600.0)).count("page") == 5  # seldom, but now and then


async def test_a_short_queue_is_one_request(long_queue: Watched) -> None:
    watched = Watched()
    watched.pages.submit_many(3)
    for _ in range(3):
        assert await watched.renew() == ["page"]


async def test_what_left_the_queue_unseen_is_missed_at_the_second_count(
    long_queue: Watched,
) -> None:
    gone = next(iter(long_queue.pages.runs))
    del long_queue.pages.runs[gone]
    asked = [await long_queue.renew() for _ in range(3)]
    assert [each.count("page") for each in asked] == [1, 1, 3]
    assert gone not in long_queue.known
    assert (await long_queue.renew()).count("page") == 1


async def test_a_run_that_was_put_back_to_where_it_was_is_found_at_once(
    long_queue: Watched,
) -> None:
    run_id = next(iter(long_queue.pages.runs))
    long_queue.picture.released([run_id])
    assert run_id not in long_queue.known
    long_queue.picture.look_again(run_id)
    assert "runs" in await long_queue.renew()
    assert run_id in long_queue.known


async def test_a_run_that_could_not_be_claimed_and_is_gone_does_not_come_back(
    long_queue: Watched,
) -> None:
    run_id = next(iter(long_queue.pages.runs))
    del long_queue.pages.runs[run_id]
    long_queue.picture.released([run_id])
    long_queue.picture.look_again(run_id)
    await long_queue.renew()
    assert run_id not in long_queue.known


async def test_an_answer_that_was_on_its_way_does_not_bring_a_released_run_back(
    long_queue: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = long_queue.pages.page
    released = sorted(long_queue.known)[:2]

    async def slow(cursor: Cursor, until: datetime) -> list[FlowRun]:
        runs = await page(cursor, until)
        long_queue.picture.released(released)
        return runs

    monkeypatch.setattr(long_queue.pages, "page", slow)
    await long_queue.renew(600.0)
    assert long_queue.known.isdisjoint(released)


async def test_what_this_worker_has_is_not_held_though_the_server_shows_it_so(
    long_queue: Watched,
) -> None:
    ours = long_queue.pages.submit()
    long_queue.ours.append(ours)
    await long_queue.renew()
    assert ours not in long_queue.known


async def test_all_runs_become_other_trainings_when_there_is_news_of_them(
    long_queue: Watched,
) -> None:
    before = long_queue.held_runs.converted
    await long_queue.renew()
    assert long_queue.held_runs.converted - before < 11
    before = long_queue.held_runs.converted
    long_queue.held_runs.has_news = True
    await long_queue.renew()
    assert long_queue.held_runs.converted - before >= 11
    before = long_queue.held_runs.converted
    long_queue.pages.template = {"variables": {"properties": {"gpus": {"default": 2}}}}
    await long_queue.renew()
    assert long_queue.held_runs.converted - before >= 11


async def test_nothing_is_held_in_a_pool_that_was_deleted_until_it_is_there_again(
    long_queue: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    long_queue.pages.is_gone = True
    for _ in range(3):
        await long_queue.renew()
    assert long_queue.known == set()
    assert caplog.text.count("The work pool was deleted") == 1
    long_queue.pages.is_gone = False
    await long_queue.renew()
    assert len(long_queue.known) == 11


async def test_a_picture_in_doubt_is_trusted_again_when_it_was_renewed(
    long_queue: Watched,
) -> None:
    assert long_queue.picture.is_trusted
    long_queue.picture.distrust()
    assert not long_queue.picture.is_trusted
    await long_queue.renew()
    assert long_queue.picture.is_trusted


class _OneByOne:
    """Plays events on a server, in the middle of readings too."""

    def __init__(self, events: list[tuple[str, int]]) -> None:
        self._watched = Watched()
        self._events = iter(events)
        self._watched.pages.submit_many(9)
        page = self._watched.pages.page

        async def meanwhile(cursor: Cursor, until: datetime) -> list[FlowRun]:
            runs = await page(cursor, until)
            self._happen()
            return runs

        self._watched.pages.page = meanwhile  # type: ignore[method-assign]

    def _happen(self) -> bool:
        event, number = next(self._events, ("end", 0))
        watched = self._watched
        ids = sorted(watched.pages.runs)
        chosen = ids[number % len(ids)] if ids else None
        if event == "submit":
            watched.pages.submit()
        elif event == "submit late":
            watched.pages.submit(LONG_AGO + timedelta(seconds=number))
        elif event == "leave" and chosen:
            del watched.pages.runs[chosen]
        elif event == "release" and chosen:
            del watched.pages.runs[chosen]
            watched.picture.released([chosen])
        return event != "end"

    async def play(self) -> tuple[set[str], set[str]]:
        await self._watched.renew()
        while self._happen():
            await self._watched.renew()
        await self._watched.renew(600.0)  # one that leaves and one that comes late are not missed
        return self._watched.known, set(self._watched.pages.runs)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "submit late", "leave", "release"]), st.integers(0, 20)
        ),
        max_size=30,
    )
)
@settings(max_examples=50)
def test_whatever_happens_the_picture_comes_to_show_what_the_server_has(
    events: list[tuple[str, int]],
) -> None:
    known, there = asyncio.run(_OneByOne(events).play())
    assert known == there


def test_a_page_begins_after_all_that_were_seen_of_the_same_moment() -> None:
    def runs(*seconds: int) -> list[FlowRun]:
        return [
            cast("FlowRun", SimpleNamespace(next_scheduled_start_time=LONG_AGO + _seconds(each)))
            for each in seconds
        ]

    cursor = Cursor().after(runs(1, 2, 3, 3))
    assert cursor == Cursor(LONG_AGO + _seconds(3), 2)
    cursor = cursor.after(runs(3, 3, 3, 3))
    assert cursor == Cursor(LONG_AGO + _seconds(3), 6)
    cursor = cursor.after(runs(3, 4, 4, 5))
    assert cursor == Cursor(LONG_AGO + _seconds(5), 1)
    assert cursor.after(runs(5, 6, 7)) is None


def _seconds(count: int) -> timedelta:
    return timedelta(seconds=count)
