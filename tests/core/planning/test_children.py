"""A training that has started another and waits for it is seen, and its child is preferred."""

from __future__ import annotations

import pytest

from tests.core.building import device, hold, release, released, resident, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Training
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]

PARENT = training("sweep", request=9000)
ADVICE = "Let 'sweep' need no device (`gpus: 0`), or not wait (`timeout=0`)."


def child(name: str = "child", submitted: float = 50.0, request: int = 9000) -> Training:
    return training(name, submitted, request=request, parent=PARENT.run_id)


@pytest.mark.parametrize("policy", ["parallel", "serial", "complementary"])
def test_a_training_that_a_running_one_waits_for_comes_before_those_that_wait_longer(
    policy: str,
) -> None:
    held = [training("first", 1.0, request=9000), child()]
    devices = [device(0, resident(PARENT, 9000)), device(1)]
    decisions = POLICIES[policy].decide(snapshot(held, devices))
    assert released(decisions) == {"child": ("GPU-1",)}
    assert "'sweep' waits for it, so it comes first" in release(decisions, "child").reason


def test_the_child_of_a_training_that_does_not_run_here_waits_its_turn() -> None:
    held = [training("first", 1.0, request=9000), child()]
    assert released(PARALLEL.decide(snapshot(held, [device(0)]))) == {"first": ("GPU-0",)}


def test_a_child_may_run_beside_its_parent() -> None:
    decisions = PARALLEL.decide(snapshot([child(request=100)], [device(0, resident(PARENT, 9000))]))
    assert release(decisions, "child").partners == (PARENT.run_id,)


def test_nobody_overtakes_who_has_waited_longer_than_max_wait() -> None:
    held = [training("first", 1.0, request=9000), child()]
    devices = [device(0, resident(PARENT, 9000)), device(1)]
    decisions = PARALLEL.decide(snapshot(held, devices, max_wait_seconds=80.0))
    assert released(decisions) == {"first": ("GPU-1",)}


def test_a_parent_that_alone_is_in_the_way_is_named_with_its_device_and_what_to_do() -> None:
    decisions = PARALLEL.decide(snapshot([child()], [device(0, resident(PARENT, 9000))]))
    held = hold(decisions, "child")
    assert held.code is ReasonCode.WAITED_ON_BY_PARENT
    assert held.reason == (
        "Nothing but 'sweep' is in the way: it has started this training and holds GPU 0 as long "
        f"as it waits for it. {ADVICE}"
    )


@pytest.mark.parametrize("slots", [1, 2])
def test_a_device_that_is_full_because_of_the_parent_has_nothing_else_in_the_way(
    slots: int,
) -> None:
    residents = [resident(PARENT, 1000), resident("other", 1000)][:slots]
    decisions = PARALLEL.decide(
        snapshot([child()], [device(0, *residents)], max_trainings_per_gpu=slots)
    )
    assert hold(decisions, "child").reason.startswith("Nothing but 'sweep' is in the way")


def test_where_others_are_in_the_way_too_both_are_said() -> None:
    decisions = PARALLEL.decide(
        snapshot([child()], [device(0, resident(PARENT, 3000), resident("other", 8000))])
    )
    held = hold(decisions, "child")
    assert held.code is ReasonCode.WAITED_ON_BY_PARENT
    assert held.reason == (
        "GPU 0 has 2 of 2 trainings: 'other' and 'sweep'. Besides, 'sweep' has started this "
        f"training and holds GPU 0 as long as it waits for it. {ADVICE}"
    )


def test_a_limit_that_keeps_the_child_is_said_beside_the_parent() -> None:
    decisions = PARALLEL.decide(
        snapshot([child()], [device(0, resident(PARENT, 9000)), device(1)], free_slots=0)
    )
    held = hold(decisions, "child")
    assert held.code is ReasonCode.WAITED_ON_BY_PARENT
    assert held.reason.startswith(
        "The work pool's concurrency limit is reached. Besides, 'sweep' has started this training"
    )


def test_who_waits_for_full_devices_reads_of_every_one() -> None:
    devices = [
        device(index, resident(f"a{index}", 100), resident(f"b{index}", 100)) for index in range(6)
    ]
    decisions = PARALLEL.decide(snapshot([training("new", request=100)], devices[:2]))
    assert hold(decisions, "new").reason == (
        "GPU 0 has 2 of 2 trainings: 'a0' and 'b0'; GPU 1 has 2 of 2 trainings: 'a1' and 'b1'."
    )
    decisions = PARALLEL.decide(snapshot([training("new", request=100)], devices))
    assert hold(decisions, "new").reason.endswith("'a3' and 'b3'; 2 more devices are full too.")
