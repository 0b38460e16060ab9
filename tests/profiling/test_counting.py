from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.counting import StepCounter


def test_steps_and_their_time_add_up() -> None:
    counter = StepCounter()
    counter.add(2.0, 1)
    counter.add(9.0, 3)
    assert counter.progress[:2] == (4, 11.0)


def test_a_step_of_unknown_time_counts_as_long_as_the_one_before() -> None:
    counter = StepCounter()
    counter.add(2.0, 1)
    counter.add_untimed()
    assert counter.progress[:2] == (2, 4.0)


def test_before_any_time_is_known_a_step_counts_with_the_next_one() -> None:
    counter = StepCounter()
    counter.add_untimed()
    assert counter.progress.steps_done == 0
    counter.add(2.0, 1)
    assert counter.progress[:2] == (2, 4.0)


def test_at_the_end_no_step_is_lost() -> None:
    counter = StepCounter()
    counter.add_untimed()
    counter.finish()
    counter.finish()
    assert counter.progress[:2] == (1, 0.0)


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_steps_of_one_length_always_take_that_long(timed: list[bool]) -> None:
    counter = StepCounter()
    for is_timed in timed:
        if is_timed:
            counter.add(0.5, 1)
        else:
            counter.add_untimed()
        progress = counter.progress
        assert progress.stepping_seconds == pytest.approx(0.5 * progress.steps_done)
    counter.finish()
    assert counter.progress.steps_done == len(timed)
