from __future__ import annotations

import pytest

from tests.core.building import device, hold, release, released, resident, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.policies import POLICIES, policy_named
from xonar_prefect.errors import UnknownPolicyError


def test_policies_are_found_by_name() -> None:
    assert {"serial", "parallel", "complementary"} <= set(POLICIES)
    assert all(policy_named(name).name == name for name in POLICIES)


def test_misspelt_policy_names_those_there_are() -> None:
    with pytest.raises(
        UnknownPolicyError,
        match=r"'paralel'.*adaptive, complementary, horus, lucid, parallel, serial",
    ):
        policy_named("paralel")


def test_serial_never_shares() -> None:
    held = [training(name, i, request=100) for i, name in enumerate("abc")]
    decisions = POLICIES["serial"].decide(
        snapshot(held, [device(0), device(1, resident("r", 100))], max_trainings_per_gpu=4)
    )
    assert released(decisions) == {"a": ("GPU-0",)}
    assert hold(decisions, "b").code is ReasonCode.NO_FREE_SLOT


def test_serial_has_nothing_to_observe() -> None:
    held = [training(name, i, request=100) for i, name in enumerate("ab")]
    decisions = POLICIES["serial"].decide(snapshot(held, [device()], observe_only=True))
    assert hold(decisions, "b").code is ReasonCode.NO_FREE_SLOT


def test_parallel_takes_the_first_that_fits() -> None:
    held = [
        training("large", 0, request=9000),
        training("first", 1, request=1000, active=0.9),
        training("better", 2, request=1000, active=0.1),
    ]
    there = training("r", active=0.9)
    decisions = POLICIES["parallel"].decide(snapshot(held, [device(0, resident(there, 8000))]))
    assert released(decisions) == {"first": ("GPU-0",)}
    assert release(decisions, "first").code is ReasonCode.FITS_BESIDE_PARTNER
    assert release(decisions, "first").predicted_slowdown == pytest.approx(1 + 1.1 * 0.81)
