from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xonar_prefect.profiling.framework_watch import FrameworkWatch

NAME = "a_framework_that_nobody_has"


class Layer:
    def call(self) -> str:
        return "called"


def louder(original: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda self: original(self).upper()


@pytest.fixture
def framework() -> Iterator[types.ModuleType]:
    module = types.ModuleType(NAME)
    yield module
    sys.modules.pop(NAME, None)


def watch_of(change: Callable[[FrameworkWatch], None]) -> FrameworkWatch:
    watch: FrameworkWatch
    watch = FrameworkWatch(NAME, lambda _module: change(watch), "Its layers")
    return watch


def louder_calls(watch: FrameworkWatch) -> None:
    watch.replace(Layer, "call", louder)


def test_what_is_there_is_changed_while_somebody_watches(framework: types.ModuleType) -> None:
    sys.modules[NAME] = framework
    original = vars(Layer)["call"]
    watch = watch_of(louder_calls)
    with watch.watching():
        with watch.watching():
            assert Layer().call() == "CALLED"
        assert Layer().call() == "CALLED"
    assert vars(Layer)["call"] is original


def test_what_never_comes_is_not_imported() -> None:
    with watch_of(louder_calls).watching():
        assert NAME not in sys.modules
        assert Layer().call() == "called"


def test_what_looks_different_is_said_and_left_as_it_was(
    framework: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    sys.modules[NAME] = framework
    taken_back: list[str] = []

    def change(watch: FrameworkWatch) -> None:
        watch.undo_with(lambda: taken_back.append("hook"))
        louder_calls(watch)
        watch.replace(Layer, "renamed_since", louder)

    with watch_of(change).watching():
        assert Layer().call() == "called"
        assert taken_back == ["hook"]
    assert "Its layers cannot be seen." in caplog.text
