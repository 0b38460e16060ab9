from __future__ import annotations

import pytest

from tests.core.building import by_name, device, hold, released, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]
MANY = [training(f"t{i}", i, request=100, deployment=f"d{i % 2}") for i in range(6)]
DEVICES = [device(index) for index in range(4)]


@pytest.mark.parametrize(
    ("limits", "expected", "code"),
    [
        ({"free_slots": 2}, 2, ReasonCode.POOL_LIMIT),
        ({"free_slots": 0}, 0, ReasonCode.POOL_LIMIT),
        ({"free_slots": -1}, 0, ReasonCode.POOL_LIMIT),
        ({"free_worker_slots": 3}, 3, ReasonCode.WORKER_LIMIT),
        ({"free_slots_by_queue": {"default": 1}}, 1, ReasonCode.QUEUE_LIMIT),
        ({"pool_paused": True}, 0, ReasonCode.POOL_PAUSED),
        ({"paused_queues": frozenset({"default"})}, 0, ReasonCode.QUEUE_PAUSED),
    ],
)
def test_each_release_uses_up_the_limit(
    limits: dict[str, object], expected: int, code: ReasonCode
) -> None:
    decisions = PARALLEL.decide(snapshot(MANY, DEVICES, **limits))
    assert list(released(decisions)) == [f"t{i}" for i in range(expected)]
    assert {hold(decisions, f"t{i}").code for i in range(expected, 6)} == {code}


def test_limits_of_one_queue_or_deployment_leave_the_others_free() -> None:
    other = training("other", 9, request=100, queue="urgent", deployment="d2")
    decisions = PARALLEL.decide(
        snapshot([*MANY, other], DEVICES, free_slots_by_deployment={"d0": 1, "d1": 0})
    )
    assert set(released(decisions)) == {"t0", "other"}
    assert hold(decisions, "t1").code is ReasonCode.DEPLOYMENT_LIMIT
    paused = PARALLEL.decide(
        snapshot([*MANY, other], DEVICES, paused_queues=frozenset({"default"}))
    )
    assert set(released(paused)) == {"other"}


def test_runs_without_a_device_bypass_the_devices_within_their_own_limit() -> None:
    held = [training(f"z{i}", i, gpus=0) for i in range(3)]
    decisions = PARALLEL.decide(snapshot(held, [], free_slots_without_device=2))
    assert released(decisions) == {"z0": (), "z1": ()}
    assert by_name(decisions)["z0"].code is ReasonCode.NEEDS_NO_DEVICE
    assert hold(decisions, "z2").code is ReasonCode.WORKER_LIMIT
    assert "without a device" in hold(decisions, "z2").reason


@pytest.mark.parametrize("first", ["gpu", "none"])
def test_the_last_slot_of_the_pool_goes_to_who_stands_first(first: str) -> None:
    held = [
        training("gpu", 1 if first == "gpu" else 2, request=100),
        training("none", 1 if first == "none" else 2, gpus=0),
    ]
    assert list(released(PARALLEL.decide(snapshot(held, DEVICES, free_slots=1)))) == [first]


def test_a_worker_limit_counts_runs_without_a_device_too() -> None:
    held = [training("z", 0, gpus=0), training("a", 1, request=100)]
    decisions = PARALLEL.decide(snapshot(held, DEVICES, free_worker_slots=1))
    assert list(released(decisions)) == ["z"]
    assert hold(decisions, "a").reason == "The limit of this worker is reached."
