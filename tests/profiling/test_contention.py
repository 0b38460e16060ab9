from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.contention import Account, busy_ticks, displaced_fraction

START = Account(at_s=100.0, own_seconds=5.0, waited_seconds=7.0, busy_seconds=900.0)
amounts = st.floats(0, 1e4)

STAT = """cpu  30 0 30 900 9 0 3 1 0 0
cpu0 10 1 10 400 5 0 2 9 0 0
cpu1 20 2 20 500 4 0 1 9 0 0
cpu12 7 0 0 0 0 0 0 0 0 0
intr 12345
"""


def after(seconds: float, *, own: float, waited: float, busy: float) -> Account:
    return Account(
        at_s=START.at_s + seconds,
        own_seconds=START.own_seconds + own,
        waited_seconds=START.waited_seconds + waited,
        busy_seconds=START.busy_seconds + busy,
    )


def test_alone_on_its_core_a_training_is_not_displaced() -> None:
    assert displaced_fraction(START, after(10, own=6, waited=0.0, busy=6), 1) == 0.0


def test_waiting_while_others_run_is_time_they_took() -> None:
    assert displaced_fraction(START, after(10, own=5, waited=4, busy=10), 1) == pytest.approx(0.4)


def test_waiting_for_ones_own_threads_is_nothing_others_took() -> None:
    assert displaced_fraction(START, after(10, own=9, waited=40, busy=9.5), 1) == pytest.approx(
        0.05
    )


def test_others_that_run_while_it_waits_for_nothing_take_nothing() -> None:
    assert displaced_fraction(START, after(10, own=2, waited=0.1, busy=9), 1) == pytest.approx(0.01)


def test_on_several_cores_what_was_taken_is_a_share_of_them_all() -> None:
    assert displaced_fraction(START, after(10, own=10, waited=5, busy=15), 2) == pytest.approx(0.25)


@given(st.floats(0, 1e3), amounts, amounts, amounts, st.integers(1, 64))
def test_it_is_always_a_share_that_leaves_something(
    seconds: float, own: float, waited: float, busy: float, cores: int
) -> None:
    share = displaced_fraction(START, after(seconds, own=own, waited=waited, busy=busy), cores)
    assert 0 <= share < 1


def test_only_the_cores_asked_for_are_added_up_and_idle_time_is_left_out() -> None:
    assert busy_ticks(STAT, {0}) == 10 + 1 + 10 + 0 + 2
    assert busy_ticks(STAT, {0, 1}) == 23 + 43
    assert busy_ticks(STAT, {12}) == 7
