"""Who is told of a decision, in which order, and who does not wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from xonar_prefect.core.decisions import (
    Hold,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.store import Store
from xonar_prefect.worker.explaining import Explanations
from xonar_prefect.worker.queue_picture import QueuePicture, QueueReading
from xonar_prefect.worker.slots import Slots
from xonar_prefect.worker.telling import Telling


class FakeExplanations:
    """Writes down what is shown; a wrong run makes it fail."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.known: set[str] = set()
        self.kept: frozenset[str] = frozenset()
        self.wrong: dict[str, Exception] = {}

    def keep_only(self, run_ids: frozenset[str]) -> None:
        self.kept = run_ids

    def has_news(self, hold: Hold, *, markable: bool) -> bool:
        return hold.training.name not in self.known

    async def hold(self, hold: Hold, flow_run: FlowRun, *, markable: bool) -> bool:
        self._show(f"hold {flow_run.name}{'' if markable else ' unmarked'}", flow_run.name)
        self.known.add(flow_run.name)
        return True

    async def release(self, release: Release, flow_run: FlowRun, partners: Sequence[str]) -> None:
        self._show(f"release {flow_run.name}", flow_run.name)

    async def joined(
        self, run_id: str, partners: Sequence[str], predicted_slowdown: float | None
    ) -> None:
        self._show(f"{' and '.join(partners)} joined, {predicted_slowdown}", "joined")

    async def refuse(self, refuse: Refuse, flow_run: FlowRun) -> bool:
        self._show(f"refuse {flow_run.name}", flow_run.name)
        return True

    def _show(self, what: str, name: str) -> None:
        if name in self.wrong:
            raise self.wrong[name]
        self.shown.append(what)


class FakePicture:
    """Knows what was dropped."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, *run_ids: str) -> None:
        self.dropped += run_ids


@pytest.fixture
def explanations() -> FakeExplanations:
    return FakeExplanations()


@pytest.fixture
def picture() -> FakePicture:
    return FakePicture()


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Slots]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield Slots(store, "one", lambda: 1000.0)


@pytest.fixture
def telling(explanations: FakeExplanations, slots: Slots, picture: FakePicture) -> Telling:
    async def step_aside() -> None:
        explanations.shown.append("stepped aside")

    return Telling(
        cast("Explanations", explanations),
        slots,
        cast("QueuePicture", picture),
        visible_held=2,
        step_aside=step_aside,
    )


RUNS = {
    name: FlowRun(id=uuid4(), flow_id=uuid4(), name=name, state=Scheduled())
    for name in ("a", "b", "c", "d")
}


def training(name: str) -> Training:
    return Training(run_id=str(RUNS[name].id), name=name, submitted_at_s=0.0)


def hold(name: str) -> Hold:
    return Hold(training=training(name), code=ReasonCode.NO_FREE_SLOT, reason="Full.")


def release(name: str, *partners: str) -> Release:
    return Release(
        training=training(name),
        devices=("cpu-0",),
        code=ReasonCode.FIRST_ON_DEVICE,
        reason="It is first.",
        partners=tuple(str(RUNS[each].id) for each in partners),
    )


def refuse(name: str) -> Refuse:
    return Refuse(training=training(name), code=ReasonCode.NEVER_FITS, reason="Too large.")


def reading(**changes: Any) -> QueueReading:
    runs = {str(run.id): run for run in RUNS.values()}
    values: dict[str, Any] = {
        "trainings": {},
        "flow_runs": runs,
        "refusals": {},
        "limits": Limits(),
        "limited": {},
    }
    return QueueReading(**{**values, **changes})


def shown(explanations: FakeExplanations) -> list[str]:
    return [each for each in explanations.shown if each != "stepped aside"]


async def test_launches_come_before_every_single_word(
    telling: Telling, explanations: FakeExplanations
) -> None:
    decisions = (release("a"), hold("b"), hold("c"))
    telling.decided(decisions, decisions[:1], reading())
    await telling.tell()
    assert explanations.shown == [
        "stepped aside", "release a", "stepped aside", "hold b", "stepped aside", "hold c",
    ]  # fmt: skip


async def test_only_the_first_held_are_told_and_nobody_twice(
    telling: Telling, explanations: FakeExplanations
) -> None:
    decisions = (hold("a"), hold("b"), hold("c"))
    telling.decided(decisions, (), reading())
    await telling.tell()
    await telling.tell()
    assert shown(explanations) == ["hold a", "hold b"]
    assert len(explanations.kept) == 3  # how long the third was held is known when it moves up


async def test_what_was_decided_but_not_carried_out_yet_is_not_told(
    telling: Telling, explanations: FakeExplanations
) -> None:
    telling.decided((release("a"), release("b")), (release("a"),), reading())
    await telling.tell()
    assert shown(explanations) == ["release a"]


async def test_a_release_that_came_to_nothing_is_not_told(
    telling: Telling, explanations: FakeExplanations
) -> None:
    decisions = (release("a"), release("b"))
    telling.decided(decisions, decisions, reading())
    telling.withdraw(str(RUNS["a"].id))
    await telling.tell()
    assert shown(explanations) == ["release b"]


async def test_a_release_may_come_to_nothing_while_launches_go_first(
    slots: Slots, explanations: FakeExplanations, picture: FakePicture
) -> None:
    async def step_aside() -> None:
        telling.withdraw(str(RUNS["a"].id))

    telling = Telling(explanations, slots, picture, visible_held=2, step_aside=step_aside)  # type: ignore[arg-type]
    decisions = (release("a"), release("b"))
    telling.decided(decisions, decisions, reading())
    await telling.tell()
    assert shown(explanations) == ["release b"]


async def test_what_is_refused_leaves_the_queue(
    telling: Telling, explanations: FakeExplanations, picture: FakePicture
) -> None:
    misspelt = refuse("b")
    queue = reading(refusals={misspelt.training.run_id: misspelt})
    telling.decided((refuse("a"),), (), queue)
    await telling.tell()
    await telling.tell()
    assert shown(explanations) == ["refuse b", "refuse a"]
    assert picture.dropped == [str(RUNS["b"].id), str(RUNS["a"].id)]


async def test_a_held_run_that_was_released_since_is_not_told_that_it_is_held(
    telling: Telling, explanations: FakeExplanations, slots: Slots, tmp_path: Path
) -> None:
    telling.decided((hold("a"), hold("b")), (), reading())
    await slots.reserve(release("a"), "core", tmp_path)
    await telling.tell()
    assert shown(explanations) == ["hold b"]


async def test_a_server_that_is_away_is_told_later_and_one_bad_run_stops_nobody(
    telling: Telling, explanations: FakeExplanations
) -> None:
    def status(code: int) -> httpx.HTTPStatusError:
        request = httpx.Request("POST", "http://server")
        return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code))

    explanations.wrong = {"a": httpx.ConnectError("refused"), "c": status(422)}
    decisions = (release("a"), hold("c"), hold("d"))
    telling.decided(decisions, decisions[:1], reading())
    for _ in range(2):
        with pytest.raises(httpx.HTTPError):
            await telling.tell()
    explanations.wrong["a"] = status(503)
    with pytest.raises(httpx.HTTPError):
        await telling.tell()
    del explanations.wrong["a"]
    await telling.tell()
    assert shown(explanations) == ["release a", "hold d"]


async def test_a_partner_learns_who_joined_and_what_is_predicted_now(
    telling: Telling, explanations: FakeExplanations, slots: Slots, tmp_path: Path
) -> None:
    first = await slots.reserve(release("a"), "core", tmp_path)
    second = await slots.reserve(release("b", "a"), "core", tmp_path)
    first.meter.expect({second.entry.run_id: "kind"}, 1.25)
    telling.decided((release("b", "a"),), (release("b", "a"),), reading())
    await telling.tell()
    assert shown(explanations) == ["release b", "b joined, 1.25"]
    (window,) = first.entry.co_runs  # written down for `xonar queue`
    assert window.predicted_slowdown == 1.25


async def test_a_deployment_with_a_limit_is_claimed_to_be_marked_only_to_be_cancelled(
    telling: Telling, explanations: FakeExplanations
) -> None:
    def limited(name: str, deployment: str, code: ReasonCode) -> Hold:
        member = Training(
            run_id=str(RUNS[name].id), name=name, submitted_at_s=0.0, deployment=deployment
        )
        return Hold(training=member, code=code, reason="Held.")

    queue = reading(limited={"enqueues": False, "cancels": True})
    for decision in (
        limited("a", "enqueues", ReasonCode.DEPLOYMENT_LIMIT),
        limited("b", "cancels", ReasonCode.NO_FREE_SLOT),
        limited("c", "cancels", ReasonCode.DEPLOYMENT_LIMIT),
        limited("d", "free", ReasonCode.NO_FREE_SLOT),
    ):
        telling.decided((decision,), (), queue)
        await telling.tell()
    assert shown(explanations) == ["hold a unmarked", "hold b unmarked", "hold c", "hold d"]
