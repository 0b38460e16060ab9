from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.change import ChangeWatch, Pace, is_news


def steps_until_noticed(watch: ChangeWatch, seconds: list[float]) -> int | None:
    for index, each in enumerate(seconds):
        if watch.add(each):
            return index + 1
    return None


def test_steps_that_stay_the_same_are_no_change() -> None:
    assert steps_until_noticed(ChangeWatch(0.1), [0.1] * 1000) is None


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_batch_size_is_noticed_after_two_blocks(factor: float) -> None:
    watch = ChangeWatch(0.1)
    seconds = [0.1] * 40 + [0.1 * factor] * 200
    noticed = steps_until_noticed(watch, seconds)
    assert noticed is not None
    block = 40 if factor == 0.5 else 20
    assert 40 < noticed <= 40 + 3 * block


def test_a_long_step_now_and_then_is_no_change() -> None:
    assert steps_until_noticed(ChangeWatch(0.1), ([0.1] * 9 + [30.0]) * 100) is None


def test_one_odd_block_is_no_change() -> None:
    seconds = ([0.1] * 20 + [0.2] * 20) * 20
    assert steps_until_noticed(ChangeWatch(0.1), seconds) is None


def test_steps_of_a_millisecond_are_watched_for_seconds() -> None:
    noticed = steps_until_noticed(ChangeWatch(0.001), [0.002] * 10_000)
    assert noticed is not None
    assert noticed * 0.002 == pytest.approx(4.0, abs=0.01)


def test_a_step_of_several_is_compared_by_its_mean() -> None:
    watch = ChangeWatch(0.1)
    assert not any(watch.add(0.5, steps=5) for _ in range(200))


@given(st.integers(0, 1000), st.floats(0.01, 10))
def test_jitter_is_no_change(seed: int, step_seconds: float) -> None:
    dice = random.Random(seed)
    seconds = [step_seconds * dice.uniform(0.7, 1.3) for _ in range(500)]
    assert steps_until_noticed(ChangeWatch(step_seconds), seconds) is None


def pace(active: float | None, undisturbed: float | None) -> Pace:
    return Pace(active_seconds=active, undisturbed_seconds=undisturbed)


def test_more_work_per_step_is_news() -> None:
    assert is_news(pace(0.05, 0.1), pace(0.1, 0.2))
    assert is_news(pace(0.05, 0.1), pace(0.1, 0.1))


def test_longer_waits_are_news() -> None:
    assert is_news(pace(0.05, 0.1), pace(0.05, 0.2))


def test_where_it_is_unknown_what_others_took_only_the_active_time_tells() -> None:
    assert not is_news(pace(0.05, None), pace(0.06, None))
    assert is_news(pace(0.05, None), pace(0.1, None))


def test_what_is_unknown_is_no_news() -> None:
    assert not is_news(pace(None, None), pace(0.1, 0.1))


@given(st.floats(0.001, 10), st.floats(0.001, 10))
def test_nothing_is_news_of_itself(active: float, undisturbed: float) -> None:
    assert not is_news(pace(active, undisturbed), pace(active, undisturbed))
