from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.metrics import Served, Service, percentile, service
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
