"""Calls that hang cost their caller a moment once, and one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import until
from xonar_prefect.devices.patience import PatientCalls, UnansweredError


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def threads() -> int:
    return sum(thread.name == "xonar slow" for thread in threading.enumerate())


def waiting_for(gate: threading.Event) -> Callable[[], str]:
    def work() -> str:
        gate.wait()
        return "late"

    return work


def test_a_call_returns_or_raises_what_its_work_does() -> None:
    calls = PatientCalls()
    assert calls.call("quick", lambda: 7, 30.0) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call("quick", lambda: 1 // 0, 30.0)
    assert not calls.hangs()


def test_a_call_that_hangs_is_given_up_and_its_name_refused_at_once(gate: threading.Event) -> None:
    calls = PatientCalls()
    with pytest.raises(UnansweredError, match=r"within 0\.05 s"):
        calls.call("slow", waiting_for(gate), 0.05)
    for _ in range(20):
        with pytest.raises(UnansweredError, match="for a while"):
            calls.call("slow", waiting_for(gate), 3600.0)
    assert threads() == 1
    assert (calls.hangs(), calls.hangs("slow"), calls.hangs("quick")) == (True, True, False)
    assert calls.call("quick", lambda: 7, 30.0) == 7


def test_a_name_is_called_again_when_its_call_has_returned(gate: threading.Event) -> None:
    calls = PatientCalls()
    with pytest.raises(UnansweredError):
        calls.call("slow", waiting_for(gate), 0.05)
    gate.set()
    until(lambda: not calls.hangs())
    assert calls.call("slow", lambda: "new", 30.0) == "new"
