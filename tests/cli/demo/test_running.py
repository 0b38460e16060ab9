from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rich.console import Console

from tests.cli.demo.building import view
from xonar_prefect.cli.demo import running
from xonar_prefect.cli.demo.devices import DemoDevices
from xonar_prefect.cli.demo.running import Demonstration
from xonar_prefect.cli.demo.watching import Stage, TrainingView
from xonar_prefect.errors import DemoError

_RUNNING = view("cnn-1", stage=Stage.RUNNING, state="Running", completed=False, settled=False)
_DRAINING = view("cnn-1", settled=False)
_DONE = view("cnn-1")


@dataclass
class FakeChild:
    """A process that ends after so many looks."""

    looks: int = 1000

    def require_alive(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise DemoError.ended("worker", 1, "made up")

    def last_words(self) -> str:
        return "nothing new"


@dataclass
class FakeWatch:
    """Shows what it was given, one after the other, and the last for ever."""

    scenes: list[tuple[TrainingView, ...] | Exception]
    shown: list[tuple[TrainingView, ...]] = field(default_factory=list)

    def look(self) -> tuple[TrainingView, ...]:
        scene = self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]
        if isinstance(scene, Exception):
            raise scene
        return scene


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def demonstration() -> Demonstration:
    unused: Any = None
    return Demonstration(
        home=unused,
        server=SimpleNamespace(child=FakeChild()),  # type: ignore[arg-type]
        client=unused,
        store=unused,
        devices=DemoDevices(kind="cpu", model="made up", count=1),
        deployments={},
        console=Console(file=StringIO()),
    )


def _watched(
    demonstration: Demonstration, watch: FakeWatch, worker: FakeChild | None = None
) -> tuple[TrainingView, ...]:
    return demonstration._watched(watch, worker or FakeChild(), watch.shown.append)  # type: ignore[arg-type]


def test_watching_ends_when_all_have_ended_and_their_slots_are_free(
    demonstration: Demonstration,
) -> None:
    watch = FakeWatch([(_RUNNING,), (_DRAINING,), (_DONE,)])

    assert _watched(demonstration, watch) == (_DONE,)
    assert watch.shown == [(_RUNNING,), (_DRAINING,), (_DONE,)]


def test_server_that_is_too_busy_once_is_asked_again(demonstration: Demonstration) -> None:
    watch = FakeWatch([(_RUNNING,), httpx.ReadTimeout("busy"), (_DONE,)])

    assert _watched(demonstration, watch) == (_DONE,)


def test_end_of_the_worker_ends_the_demonstration(demonstration: Demonstration) -> None:
    with pytest.raises(DemoError, match="worker of the demonstration ended"):
        _watched(demonstration, FakeWatch([(_RUNNING,)]), FakeChild(looks=3))


def test_slot_that_is_never_freed_does_not_keep_the_result_back(
    demonstration: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SETTLING_SECONDS", 0.0)

    assert _watched(demonstration, FakeWatch([(_DRAINING,)])) == (_DRAINING,)


def test_queue_in_which_nothing_advances_is_given_up(
    demonstration: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_STALLED_SECONDS", 0.0)

    with pytest.raises(DemoError, match=r"No training has advanced(?s:.*)nothing new"):
        _watched(demonstration, FakeWatch([(_RUNNING,)]))
