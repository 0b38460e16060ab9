from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.building import (
    device,
    hold,
    observation,
    release,
    released,
    resident,
    snapshot,
    training,
)
from xonar_prefect.core.decisions import Decision, ReasonCode
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.policies.complementary import (
    Complementary,
    complement_score,
    joint_active_fraction,
)

POLICY = Complementary()


def decide_beside(running: float | None, *held: Training, most: int = 2) -> tuple[Decision, ...]:
    there = resident(training("running", active=running), 1000)
    return POLICY.decide(snapshot(held, [device(0, there)], max_trainings_per_gpu=most))


def held(name: str, active: float | None, submitted: float = 0.0) -> Training:
    return training(name, submitted, active=active, request=1000)


@given(st.floats(0.001, 0.999) | st.sampled_from([0.0, 1.0]))
def test_fractions_that_add_up_to_one_complement_each_other_perfectly(active: float) -> None:
    assert complement_score(active, 1.0 - active) == pytest.approx(0.0, abs=1e-6)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_score_is_a_number_and_symmetric(u: float, v: float) -> None:
    assert complement_score(u, v) >= 0.0
    assert complement_score(u, v) == complement_score(v, u)


def test_never_idle_beside_a_busy_one_scores_infinite() -> None:
    assert complement_score(1.0, 0.01) == math.inf


def test_residents_count_as_one_that_is_active_while_any_is() -> None:
    assert joint_active_fraction([0.5, 0.2]) == pytest.approx(0.6)
    assert joint_active_fraction([]) == 0.0


def test_the_best_complement_joins_and_says_so() -> None:
    decisions = decide_beside(0.35, held("busy", 0.95, 0), held("fitting", 0.62, 1))
    chosen = release(decisions, "fitting")
    assert chosen.code is ReasonCode.COMPLEMENTS_PARTNER
    assert chosen.reason == (
        "Released to GPU 0 beside 'running': 62 % active fits its 35 % (|r·r' - 1| = 0.12), "
        "1000 of 15000 MiB available, predicted slowdown 1.24."
    )
    (other,) = chosen.alternatives
    assert (other.candidate, other.code) == ("busy", ReasonCode.BETTER_PARTNER_CHOSEN)
    assert other.predicted_slowdown == pytest.approx(1 + 1.1 * 0.95 * 0.35)


def test_who_was_passed_over_learns_for_whom() -> None:
    decisions = decide_beside(0.35, held("busy", 0.95, 0), held("fitting", 0.62, 1))
    waiting = hold(decisions, "busy")
    assert waiting.code is ReasonCode.BETTER_PARTNER_CHOSEN
    assert waiting.reason == (
        "'fitting' complements 'running' on GPU 0 better: its |r·r' - 1| is 0.12 (62 % active), "
        "that of this training 9.23 (95 % active)."
    )


def test_who_stands_behind_was_not_passed_over() -> None:
    decisions = decide_beside(0.35, held("fitting", 0.62, 1), held("busy", 0.95, 2))
    assert hold(decisions, "busy").code is ReasonCode.NO_FREE_SLOT


def test_the_first_of_an_empty_device_is_the_first_in_the_queue_that_fits() -> None:
    queue = [
        training("large", 0, request=20000),
        held("first", 0.9, 1),
        held("second", 0.1, 2),
    ]
    decisions = POLICY.decide(
        snapshot(queue, [device(0), device(1, memory=32000, unavailable="x")])
    )
    assert release(decisions, "first").code is ReasonCode.FIRST_ON_DEVICE
    assert release(decisions, "second").code is ReasonCode.COMPLEMENTS_PARTNER


def test_only_what_fits_is_weighed() -> None:
    too_large = training("perfect", 0, active=0.65, request=20000)
    decisions = POLICY.decide(
        snapshot(
            [too_large, held("other", 0.1, 1)],
            [
                device(0, resident(training("running", active=0.35), 1000)),
                device(1, resident("x", 15000, on=[1]), memory=32000),
            ],
        )
    )
    assert released(decisions) == {"other": ("GPU-0",)}
    assert hold(decisions, "perfect").code is ReasonCode.INSUFFICIENT_MEMORY


def test_beside_a_never_idle_training_the_least_active_wins() -> None:
    decisions = decide_beside(1.0, held("busy", 0.9, 0), held("calm", 0.2, 1))
    assert list(released(decisions)) == ["calm"]


def test_beside_a_never_idle_training_a_never_active_one_is_perfect() -> None:
    decisions = decide_beside(1.0, held("calm", 0.2, 0), held("idle", 0.0, 1))
    assert list(released(decisions)) == ["idle"]
    assert "(|r·r' - 1| = 0.00)" in release(decisions, "idle").reason


def test_unknown_activity_comes_after_all_that_is_known() -> None:
    decisions = decide_beside(0.5, held("unknown", None, 0), held("poor", 0.99, 1))
    assert list(released(decisions)) == ["poor"]


@pytest.mark.parametrize("running", [None, 0.5])
def test_unknown_activity_falls_back_to_queue_order(running: float | None) -> None:
    decisions = decide_beside(running, held("b", None, 1), held("a", None, 0))
    assert list(released(decisions)) == ["a"]
    assert release(decisions, "a").code is ReasonCode.FITS_BESIDE_PARTNER


def test_unknown_resident_falls_back_to_queue_order() -> None:
    decisions = decide_beside(None, held("b", 0.1, 1), held("a", 0.9, 0))
    assert list(released(decisions)) == ["a"]


def test_equal_scores_go_by_queue_order() -> None:
    decisions = decide_beside(0.5, held("b", 0.4, 1), held("a", 0.4, 0))
    assert list(released(decisions)) == ["a"]


def test_nothing_fits_and_the_slot_stays_free() -> None:
    decisions = POLICY.decide(
        snapshot([training("a", request=2000)], [device(0, resident("r", 15000))])
    )
    assert released(decisions) == {}


def test_a_third_training_complements_the_two_together() -> None:
    decisions = decide_beside(
        0.5, held("first", 0.5, 0), held("busy", 0.8, 1), held("calm", 0.25, 2), most=3
    )
    assert list(released(decisions)) == ["first", "calm"]
    assert "25 % active fits its 75 %" in release(decisions, "calm").reason


def test_observed_slowdowns_are_what_is_predicted() -> None:
    there = resident(training("running", active=0.5), 1000)
    seen = tuple(observation("a", "running", slowdown=2.5) for _ in range(200))
    decisions = POLICY.decide(
        Snapshot(
            now_s=0.0,
            held=(held("a", 0.5),),
            devices=(device(0, there),),
            observations=seen,
        )
    )
    assert release(decisions, "a").predicted_slowdown == pytest.approx(2.5, rel=0.02)
