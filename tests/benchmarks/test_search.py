from __future__ import annotations

import math
from itertools import permutations, product
from random import Random

import pytest

from tests.benchmarks.search import best_average, completion_times
from tests.core.simulation.worlds import finished, run, submission, world

ALWAYS = [[2.0, 2.0, 2.0]] * 3


def test_a_plan_ends_as_worked_out_by_hand() -> None:
    # the first two share until 20 s, when both are done; then the third
    assert completion_times([0, 1, 2], [False] * 3, [10, 10, 5], ALWAYS) == [20, 20, 25]


def test_who_is_to_be_alone_waits_for_the_empty_device_and_nobody_joins() -> None:
    alone = [False, True, False]
    assert completion_times([0, 1, 2], alone, [10, 10, 5], ALWAYS) == [10, 20, 25]


def test_a_pair_that_does_not_fit_never_shares() -> None:
    apart = [[math.inf] * 2] * 2
    assert completion_times([1, 0], [False] * 2, [10, 5], apart) == [15, 5]


def test_sharing_everything_in_order_is_what_parallel_does() -> None:
    fractions = {"a": 0.2, "b": 0.7, "c": 0.9}
    seconds = [40, 10, 25]
    slowdowns = [[1 + u * v for v in fractions.values()] for u in fractions.values()]
    simulated = finished(
        run(world(fractions), *(submission(n, s) for n, s in zip(fractions, seconds, strict=True)))
    )
    ends = completion_times([0, 1, 2], [False] * 3, seconds, slowdowns)
    assert dict(zip(fractions, ends, strict=True)) == pytest.approx(simulated)


def test_the_search_finds_the_best_of_all_plans_of_four() -> None:
    dice = Random(4)
    seconds = [dice.uniform(5, 50) for _ in range(4)]
    slowdowns = [[dice.uniform(1.0, 2.6) for _ in range(4)] for _ in range(4)]
    best = min(
        sum(completion_times(order, alone, seconds, slowdowns)) / 4
        for order in permutations(range(4))
        for alone in product([False, True], repeat=4)
    )
    found = best_average(seconds, slowdowns, steps=2000, dice=Random(1))
    assert found == pytest.approx(best)
