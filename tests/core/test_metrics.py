from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.metrics import (
    Served,
    Service,
    finish_time_fairness,
    mean_interval,
    percentile,
    service,
    student_t_quantile,
)
from xonar_prefect.errors import InvalidValueError


def served(submitted: float, started: float, finished: float) -> Served:
    return Served(submitted_at_s=submitted, started_at_s=started, finished_at_s=finished)


def test_a_queue_served_one_after_the_other() -> None:
    assert service([served(0, 0, 10), served(0, 10, 30), served(5, 30, 35)]) == Service(
        average_jct_s=(10 + 30 + 30) / 3,
        p95_jct_s=30,
        makespan_s=35,
        average_queueing_delay_s=(0 + 10 + 25) / 3,
    )


def test_an_empty_queue_has_unknown_figures() -> None:
    assert service([]) == Service(
        average_jct_s=None, p95_jct_s=None, makespan_s=None, average_queueing_delay_s=None
    )


def test_tail_of_twenty_is_the_second_longest() -> None:
    assert percentile(list(range(1, 21)), 95) == 19
    assert percentile(list(range(1, 20)), 95) == 19


@given(st.lists(st.floats(0, 1e9), min_size=1), st.integers(1, 100))
def test_percentile_is_the_smallest_that_enough_values_do_not_exceed(
    values: list[float], percent: int
) -> None:
    def enough(bound: float) -> bool:
        return sum(value <= bound for value in values) * 100 >= percent * len(values)

    found = percentile(values, percent)
    assert found == min(value for value in values if enough(value))


@pytest.mark.parametrize("times", [(1, 0, 2), (0, 2, 1), (0, 0, math.nan), (0, 0, math.inf)])
def test_times_out_of_order_cannot_be(times: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidValueError, match="in this order"):
        served(*times)


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_percentile_of_an_impossible_share_cannot_be(percent: float) -> None:
    with pytest.raises(InvalidValueError, match="at most 100"):
        percentile([1.0], percent)


def test_alone_on_the_devices_everybody_is_treated_fairly() -> None:
    assert finish_time_fairness([served(0, 0, 10)], [10.0], [1], 4) == [1.0]


def test_waiting_for_the_only_device_while_another_has_it_is_as_long_as_an_equal_share() -> None:
    # both are there until 10 s, then the second alone: on average 1.5 while it is there
    first, second = finish_time_fairness([served(0, 0, 10), served(0, 10, 20)], [10, 10], [1, 1], 1)
    assert first == 10 / 20
    assert second == pytest.approx(20 / 15)


def test_with_devices_for_all_nobody_has_to_share() -> None:
    ratios = finish_time_fairness([served(0, 0, 10), served(0, 5, 15)], [10, 10], [1, 1], 2)
    assert ratios == [1.0, 1.5]


def test_what_needs_no_time_has_no_fairness() -> None:
    assert finish_time_fairness([served(0, 0, 0)], [0.0], [1], 1) == []


def test_interval_of_a_mean_by_student() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low, high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)
    assert mean_interval([4.0, 4.0]) == (4.0, 4.0)
    assert mean_interval([1.0]) is None


def test_no_degree_of_freedom_cannot_be() -> None:
    with pytest.raises(InvalidValueError, match="at least 1"):
        student_t_quantile(0)
