"""The named rivals: each by its own rule."""

from __future__ import annotations

from dataclasses import replace

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
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.policies import POLICIES

LUCID, HORUS = POLICIES["lucid"], POLICIES["horus"]


def test_lucid_starts_the_least_device_time_first() -> None:
    held = [
        training("long", 0, request=100, remaining_seconds=100.0),
        training("short", 1, request=100, remaining_seconds=10.0),
    ]
    assert list(released(LUCID.decide(snapshot(held, [device()], max_trainings_per_gpu=1)))) == [
        "short"
    ]


def test_lucid_joins_only_while_the_share_scores_add_up_to_two() -> None:
    tiny = training("tiny", 0, active=0.01, peak=100)
    jumbo = training("jumbo", 0, active=0.9, peak=100)
    beside = resident(training("there", active=0.9, peak=100), 200)
    joined = LUCID.decide(snapshot([tiny], [device(0, beside)]))
    assert release(joined, "tiny").code is ReasonCode.LEAST_INTERFERENCE
    assert "the share scores add up to 2" in release(joined, "tiny").reason
    refused = LUCID.decide(snapshot([jumbo], [device(0, beside)]))
    assert hold(refused, "jumbo").code is ReasonCode.BETTER_ALONE


def test_lucid_scores_by_what_was_observed() -> None:
    held = [training("a", 0, request=100)]
    there = resident(training("b", request=100), 200)
    fast = [observation("a", f"x{i}", slowdown=1.0) for i in range(20)]
    fast += [observation("b", f"x{i}", slowdown=1.0) for i in range(20)]
    before = snapshot(held, [device(0, there)])
    assert released(LUCID.decide(before)) == {}
    assert list(released(LUCID.decide(replace(before, observations=tuple(fast))))) == ["a"]


def test_lucid_puts_no_more_than_two_on_a_device() -> None:
    held = [training("a", 0, active=0.0, peak=100)]
    there = [resident(training(name, active=0.0, peak=100), 200) for name in "bc"]
    decisions = LUCID.decide(snapshot(held, [device(0, *there)], max_trainings_per_gpu=4))
    assert hold(decisions, "a").code is ReasonCode.BETTER_ALONE


def test_horus_prefers_an_empty_device_and_then_utilisations_that_add_up() -> None:
    held = [training("a", 0, active=0.6, peak=100)]
    low = resident(training("low", active=0.4, peak=100), 200, on=[0])
    high = resident(training("high", active=0.9, peak=100), 200, on=[1])
    both = [device(0, low), device(1, high)]
    assert released(HORUS.decide(snapshot(held, [*both, device(2)]))) == {"a": ("GPU-2",)}
    decisions = HORUS.decide(snapshot(held, both))
    assert released(decisions) == {"a": ("GPU-0",)}
    assert release(decisions, "a").code is ReasonCode.LEAST_COST
    assert release(decisions, "a").alternatives[0].device == "GPU-1"


def test_horus_goes_by_the_queue() -> None:
    held = [training("a", 0, request=100), training("b", 1, request=100)]
    assert list(released(HORUS.decide(snapshot(held, [device()], max_trainings_per_gpu=1)))) == [
        "a"
    ]
