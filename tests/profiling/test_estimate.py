import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.estimate import Estimator
from xonar_prefect.profiling.window import Window

WINDOW = Window()
steps_of_any_kind = st.lists(
    st.tuples(st.floats(0.001, 10.0), st.floats(0.0, 1.0)), min_size=2, max_size=50
)


def filled(samples: list[tuple[float, float | None]]) -> Estimator:
    estimator = Estimator()
    for wall, active in samples:
        estimator.add(wall, active)
    return estimator


def test_nothing_measured_is_no_estimate() -> None:
    assert Estimator().estimate() is None


def test_a_long_step_counts_for_as_long_as_it_is() -> None:
    estimate = filled([(1.0, 1.0), (9.0, 0.0)]).estimate()
    assert estimate is not None
    assert estimate.active_fraction == pytest.approx(0.1)
    assert estimate.step_seconds == pytest.approx(5.0)


@given(steps_of_any_kind)
def test_interval_is_that_of_a_ratio_estimator(samples: list[tuple[float, float]]) -> None:
    walls = [wall for wall, _ in samples]
    actives = [wall * share for wall, share in samples]
    estimate = filled(list(zip(walls, actives, strict=True))).estimate()
    assert estimate is not None
    assert estimate.active_fraction_interval is not None
    ratio = sum(actives) / sum(walls)
    residuals = [a - ratio * w for a, w in zip(actives, walls, strict=True)]
    n = len(samples)
    spread = math.sqrt(sum(r * r for r in residuals) / (n - 1))
    half_width = 1.96 * spread / (math.sqrt(n) * statistics.mean(walls))
    low, high = estimate.active_fraction_interval
    assert low == pytest.approx(max(0.0, ratio - half_width), abs=1e-5)
    assert high == pytest.approx(min(1.0, ratio + half_width), abs=1e-5)


@given(steps_of_any_kind)
def test_interval_of_the_step_time_is_that_of_a_mean(samples: list[tuple[float, float]]) -> None:
    walls = [wall for wall, _ in samples]
    estimate = filled([(wall, None) for wall in walls]).estimate()
    assert estimate is not None
    assert estimate.active_fraction is None
    assert estimate.step_seconds_interval is not None
    half_width = 1.96 * statistics.stdev(walls) / math.sqrt(len(walls))
    mean = statistics.mean(walls)
    assert estimate.step_seconds_interval == pytest.approx(
        (max(0.0, mean - half_width), mean + half_width), abs=1e-5
    )


def test_more_active_than_wall_is_fully_active() -> None:
    estimate = filled([(1.0, 1.2), (1.0, 1.1)]).estimate()
    assert estimate is not None
    assert estimate.active_fraction == 1.0


def test_a_steady_training_settles_at_the_minimum() -> None:
    estimator = filled([(0.02, 0.01)] * 9)
    assert not estimator.settled(WINDOW)
    estimator.add(0.02, 0.01)
    assert estimator.settled(WINDOW)


def test_a_jittery_training_takes_longer_but_not_for_ever() -> None:
    dice = random.Random(1)
    estimator = Estimator()
    while not estimator.settled(WINDOW):
        estimator.add(1.0, dice.choice((0.0, 1.0)))
    assert estimator.steps == WINDOW.maximum


def test_without_active_time_the_step_time_must_settle() -> None:
    assert filled([(0.02, None)] * 10).settled(WINDOW)
    assert not filled([(0.02, None), (0.2, None)] * 5).settled(WINDOW)


def test_measurements_over_several_steps_give_the_time_of_one() -> None:
    estimator = Estimator()
    for wall in (0.4, 0.6, 0.5):
        estimator.add(wall, wall / 2, steps=5)
    estimate = estimator.estimate()
    assert estimate is not None
    assert estimate.steps == 15
    assert estimate.step_seconds == pytest.approx(0.1)
    assert estimate.step_seconds_interval is not None
    low, high = estimate.step_seconds_interval
    assert (low + high) / 2 == pytest.approx(0.1)
    assert high - low < 0.1
