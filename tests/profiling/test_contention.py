from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.contention import (
    Account,
    Contention,
    busy_ticks,
    difference,
    displaced_fraction,
    undisturbed_fraction,
)

amounts = st.floats(0, 1e4)

STAT = """cpu  30 0 30 900 9 0 3 1 0 0
cpu0 10 1 10 400 5 0 2 9 0 0
cpu1 20 2 20 500 4 0 1 9 0 0
cpu12 7 0 0 0 0 0 0 0 0 0
intr 12345
"""


def counted(seconds: float, *, own: float, waited: float, busy: float) -> Contention:
    return Contention(elapsed_s=seconds, own_seconds=own, waited_seconds=waited, busy_seconds=busy)


def test_alone_on_its_core_a_training_is_not_displaced() -> None:
    assert displaced_fraction(counted(10, own=6, waited=0.0, busy=6), 1) == 0.0


def test_waiting_while_others_run_is_time_they_took() -> None:
    assert displaced_fraction(counted(10, own=5, waited=4, busy=10), 1) == pytest.approx(0.4)


def test_waiting_for_ones_own_threads_is_nothing_others_took() -> None:
    assert displaced_fraction(counted(10, own=9, waited=40, busy=9.5), 1) == pytest.approx(0.05)


def test_others_that_run_while_it_waits_for_nothing_take_nothing() -> None:
    assert displaced_fraction(counted(10, own=2, waited=0.1, busy=9), 1) == pytest.approx(0.01)


def test_on_several_cores_each_thread_holds_up_its_part() -> None:
    wide = counted(10, own=10, waited=5, busy=15)._replace(threads=2.0)
    assert displaced_fraction(wide, 2) == pytest.approx(0.25)
    assert displaced_fraction(wide._replace(threads=9.0), 2) == pytest.approx(0.25)


def test_one_thread_that_waits_holds_up_all_however_many_cores_there_are() -> None:
    assert displaced_fraction(counted(10, own=3, waited=5, busy=19), 2) == pytest.approx(0.5)


@given(st.floats(0, 1e3), amounts, amounts, amounts, st.integers(1, 64))
def test_it_is_always_a_share_that_leaves_something(
    seconds: float, own: float, waited: float, busy: float, cores: int
) -> None:
    share = displaced_fraction(counted(seconds, own=own, waited=waited, busy=busy), cores)
    assert 0 <= share < 1


def test_only_the_cores_asked_for_are_added_up_and_idle_time_is_left_out() -> None:
    assert busy_ticks(STAT, {0}) == 10 + 1 + 10 + 0 + 2
    assert busy_ticks(STAT, {0, 1}) == 23 + 43
    assert busy_ticks(STAT, {12}) == 7


def moment(at_s: float, own: float, busy: float, **threads: tuple[float, float]) -> Account:
    return Account(at_s=at_s, own_seconds=own, busy_seconds=busy, threads=threads)


def test_only_what_was_counted_in_between_matters() -> None:
    before = moment(100.0, 5.0, 900.0, main=(5.0, 7.0))
    after = moment(110.0, 9.0, 907.0, main=(9.0, 12.0))
    assert difference(before, after) == counted(10.0, own=4.0, waited=5.0, busy=7.0)


def test_the_thread_that_computes_most_stands_for_all() -> None:
    before = moment(0.0, 0.0, 0.0, compute=(0.0, 0.0), poll=(0.0, 0.0))
    after = moment(10.0, 4.4, 9.0, compute=(4.0, 3.0), poll=(0.4, 5.0))
    assert difference(before, after).waited_seconds == pytest.approx(3.3)
    assert difference(before, after).threads == pytest.approx(1.1)


def test_threads_that_come_or_go_meanwhile_are_left_out() -> None:
    before = moment(0.0, 0.0, 0.0, gone=(9.0, 9.0))
    after = moment(10.0, 4.0, 9.0, new=(4.0, 3.0))
    assert difference(before, after).waited_seconds == 0.0


def test_undisturbed_a_fraction_stands_as_it_was_measured() -> None:
    assert undisturbed_fraction(0.3, 0.0) == pytest.approx(0.3)


def test_a_training_that_waits_for_nothing_has_lost_all_that_others_took() -> None:
    assert undisturbed_fraction(0.5, 0.5) == pytest.approx(1.0)
    assert undisturbed_fraction(0.25, 0.75) == pytest.approx(1.0)


@given(st.floats(0, 1), st.floats(0, 0.95))
def test_it_lies_between_the_time_as_it_passed_and_what_others_left(
    active: float, displaced: float
) -> None:
    undisturbed = undisturbed_fraction(active, displaced)
    assert active <= undisturbed <= min(1.0, active / (1.0 - displaced))
