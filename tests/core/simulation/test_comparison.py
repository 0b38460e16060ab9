from __future__ import annotations

from typing import Any

import pytest

from tests.core.simulation.worlds import run, submission, world
from xonar_prefect.core.simulation.comparison import (
    QueueFigures,
    difference,
    figures_of,
    summary,
    to_json,
)


def figures(queue: str, average: float | None = 10.0, **values: Any) -> QueueFigures:
    return QueueFigures(
        **{
            "queue": queue,
            "average_jct_s": average,
            "p95_jct_s": 20.0,
            "makespan_s": 30.0,
            "average_queueing_delay_s": 1.0,
            "average_fairness": 0.5,
            "worst_fairness": 0.9,
            "completed": 3,
            "refused": 0,
            "failed": 0,
            "out_of_memory": 1,
            "decisions": 4,
            "seconds_per_decision": 0.002,
            **values,
        }
    )


def test_figures_are_those_of_the_run() -> None:
    ticks = iter(range(1000))
    result = run(
        world({"a": 1.0}),
        submission("a", 10),
        submission("b", 10, kind="a", gpus=5),
        policy="serial",
        clock=lambda: float(next(ticks)),
    )
    found = figures_of("q", result, devices=1)
    assert (found.average_jct_s, found.makespan_s) == (10, 10)
    assert (found.completed, found.refused) == (1, 1)
    assert found.seconds_per_decision == 1.0
    assert found.worst_fairness == 1.0


def test_times_are_means_over_queues_and_counts_are_sums() -> None:
    total = summary([figures("q0"), figures("q1", 20.0, decisions=12, seconds_per_decision=0.001)])
    assert total["average_jct_s"] == 15
    assert total["out_of_memory"] == 2
    assert total["seconds_per_decision"] == pytest.approx((0.002 * 4 + 0.001 * 12) / 16)


def test_the_tail_over_all_is_that_of_all_trainings() -> None:
    queues = [figures(f"q{n}", jcts_s=(float(n), 100.0 if n == 9 else 1.0)) for n in range(10)]
    assert summary(queues)["p95_jct_over_all_s"] == 9.0
    assert summary([figures("q0")])["p95_jct_over_all_s"] is None


def test_a_queue_in_which_nothing_completed_is_in_no_mean() -> None:
    assert summary([figures("q0"), figures("q1", None)])["average_jct_s"] == 10


def test_differences_are_paired_by_queue_whatever_their_order() -> None:
    ours = [figures("q1", 90.0), figures("q0", 9.0)]
    base = [figures("q0", 10.0), figures("q1", 100.0)]
    found = difference(ours, base, "average_jct_s")
    assert found is not None
    assert found.mean == pytest.approx(-0.1)
    # shares of the mean of 55: -1/55 and -10/55; with one degree of freedom t is 12.7
    half = 12.706 * (9 / 55) / 2
    assert (found.low, found.high) == pytest.approx((-0.1 - half, -0.1 + half), rel=1e-3)


def test_one_queue_has_a_difference_and_no_interval() -> None:
    found = difference([figures("q0", 5.0)], [figures("q0", 10.0)], "average_jct_s")
    assert found is not None
    assert (found.mean, found.low, found.high) == (-0.5, None, None)


def test_nothing_to_pair_is_no_difference() -> None:
    assert difference([figures("q0", None)], [figures("q0")], "average_jct_s") is None
    assert difference([figures("q0")], [figures("q1")], "average_jct_s") is None


def test_json_has_policies_with_their_queues_and_the_differences() -> None:
    found = to_json({"parallel": [figures("q0")], "serial": [figures("q0", 15.0)]}, "parallel")
    assert found["serial"]["against_parallel"]["average_jct_s"]["mean"] == pytest.approx(0.5)
    assert "against_parallel" not in found["parallel"]
    assert found["parallel"]["queues"][0]["queue"] == "q0"
