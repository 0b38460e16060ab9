"""What the board keeps whatever the rule, seen through the simplest one."""

from __future__ import annotations

import pytest

from tests.core.building import (
    device,
    hold,
    release,
    released,
    resident,
    snapshot,
    training,
)
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.memory import UNKNOWN_MEMORY_MIB
from xonar_prefect.core.models import Device, Resident
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]


def gang_on(*indices: int, name: str = "gang", request: int = 1000) -> Resident:
    return resident(training(name, gpus=len(indices)), request, on=indices)


def test_empty_devices_are_filled_before_anybody_shares() -> None:
    held = [training(name, i, request=100) for i, name in enumerate("abc")]
    devices = [device(0, resident("r", 100)), device(1), device(2)]
    assert released(PARALLEL.decide(snapshot(held, devices))) == {
        "a": ("GPU-1",),
        "b": ("GPU-2",),
        "c": ("GPU-0",),
    }


def test_trainings_released_together_reserve_their_full_requests() -> None:
    held = [training(name, i, request=9000) for i, name in enumerate("ab")]
    decisions = PARALLEL.decide(snapshot(held, [device()]))
    assert released(decisions) == {"a": ("GPU-0",)}
    assert hold(decisions, "b").code is ReasonCode.INSUFFICIENT_MEMORY
    assert "9000 reserved for 'a'" in hold(decisions, "b").reason


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (2, 2), (3, 3), (9, 4)])
def test_never_more_than_allowed_on_a_device(most: int, expected: int) -> None:
    held = [training(name, i, request=100) for i, name in enumerate("abcd")]
    decisions = PARALLEL.decide(snapshot(held, [device()], max_trainings_per_gpu=most))
    assert len(released(decisions)) == expected


def test_exclusive_training_waits_for_an_empty_device_and_is_never_joined() -> None:
    alone = training("alone", 1, request=100, exclusive=True)
    decisions = PARALLEL.decide(snapshot([alone], [device(0, resident("r"))]))
    assert hold(decisions, "alone").code is ReasonCode.EXCLUSIVE
    joining = training("joining", 1, request=100)
    decisions = PARALLEL.decide(snapshot([joining], [device(0, resident(alone))]))
    assert hold(decisions, "joining").code is ReasonCode.EXCLUSIVE
    assert hold(decisions, "joining").reason == "'alone' on GPU 0 shares its device with nobody."


def test_unprofiled_training_starts_on_an_empty_device_with_all_its_memory() -> None:
    decisions = PARALLEL.decide(snapshot([training("new")], [device()]))
    assert release(decisions, "new").request_mib is None
    assert "memory peak unknown, so all 16000 MiB available" in release(decisions, "new").reason


def test_unprofiled_training_does_not_join() -> None:
    decisions = PARALLEL.decide(snapshot([training("new")], [device(0, resident("r"))]))
    assert hold(decisions, "new").code is ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE


def test_nobody_joins_a_training_whose_peak_is_not_known_yet() -> None:
    decisions = PARALLEL.decide(
        snapshot([training("a", request=100)], [device(0, resident("new", None))])
    )
    assert hold(decisions, "a").code is ReasonCode.PARTNER_UNPROFILED
    assert "'new', whose memory peak is not known yet" in hold(decisions, "a").reason


def test_nobody_joins_a_training_that_measured_a_whole_device() -> None:
    greedy = resident(training("greedy", peak=15900), None)
    decisions = PARALLEL.decide(snapshot([training("a", request=100)], [device(0, greedy)]))
    assert hold(decisions, "a").code is ReasonCode.INSUFFICIENT_MEMORY
    assert "all of it reserved for 'greedy'" in hold(decisions, "a").reason


def test_unprofiled_training_with_a_declared_request_may_share() -> None:
    held = [training(name, i, request=100) for i, name in enumerate("ab")]
    decisions = PARALLEL.decide(snapshot(held, [device()]))
    assert release(decisions, "b").partners == ("run-a",)
    assert "slowdown not predictable yet" in release(decisions, "b").reason


def test_device_filled_by_others_does_not_attract_unprofiled_trainings() -> None:
    devices = [device(0, used_mib=15000), device(1)]
    decisions = PARALLEL.decide(snapshot([training("new")], devices))
    assert released(decisions) == {"new": ("GPU-1",)}
    decisions = PARALLEL.decide(snapshot([training("new")], devices[:1]))
    assert hold(decisions, "new").code is ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE


def test_nothing_is_released_to_an_unavailable_device() -> None:
    decisions = PARALLEL.decide(
        snapshot([training("a", request=1)], [device(unavailable="Xid 79.")])
    )
    held = hold(decisions, "a")
    assert (held.code, held.reason) == (ReasonCode.NO_DEVICE, "GPU 0 is unavailable: Xid 79.")


def test_who_waits_for_unavailable_devices_reads_of_every_one() -> None:
    def reason(*unavailable: str) -> str:
        devices = [device(index, unavailable=why) for index, why in enumerate(unavailable)]
        decisions = PARALLEL.decide(snapshot([training("a", request=1)], devices))
        held = hold(decisions, "a")
        assert held.code is ReasonCode.NO_DEVICE
        return held.reason

    assert reason("drained: fan", "drained: fan.") == (
        "GPU 0 and GPU 1 are unavailable: drained: fan."
    )
    assert reason("drained: fan", "Xid 79.", "drained: fan") == (
        "GPU 0 and GPU 2 are unavailable: drained: fan; GPU 1 is unavailable: Xid 79."
    )
    assert reason(*["drained: fan"] * 63, "Xid 79.") == (
        "GPU 0, GPU 1, GPU 2 and 60 others are unavailable: drained: fan; "
        "GPU 63 is unavailable: Xid 79."
    )
    assert reason(*[f"drained: {index}" for index in range(64)]).endswith(
        "GPU 3 is unavailable: drained: 3; 60 more devices are unavailable too."
    )


def test_gang_gets_all_its_devices_of_one_model_or_none() -> None:
    gang = training("gang", gpus=2, request=1000)
    mixed = [device(0), device(1, model="A100"), device(2, resident("r"))]
    decisions = PARALLEL.decide(snapshot([gang], mixed))
    assert hold(decisions, "gang").code is ReasonCode.GANG_INCOMPLETE
    assert hold(decisions, "gang").reason == (
        "This training needs 2 empty devices of one model at once, but only 1 of 2 of model V100 "
        "are empty with room for it."
    )
    decisions = PARALLEL.decide(snapshot([gang], [*mixed, device(3)]))
    assert release(decisions, "gang").devices == ("GPU-0", "GPU-3")


def test_gang_needs_room_on_each_of_its_devices() -> None:
    gang = training("gang", gpus=2, request=10000)
    decisions = PARALLEL.decide(snapshot([gang], [device(0), device(1, used_mib=9000)]))
    assert hold(decisions, "gang").code is ReasonCode.GANG_INCOMPLETE


def test_gang_joins_a_gang_on_the_identical_set_of_devices() -> None:
    there = gang_on(0, 1)
    devices = [device(0, there), device(1, there), device(2, resident("r", on=[2]))]
    decisions = PARALLEL.decide(snapshot([training("second", gpus=2, request=1000)], devices))
    assert release(decisions, "second").devices == ("GPU-0", "GPU-1")
    assert release(decisions, "second").partners == ("run-gang",)


def two_gangs_that_overlap() -> list[Device]:
    first, second = gang_on(0, 1, name="first"), gang_on(1, 2, name="second")
    return [device(0, first), device(1, first, second), device(2, second)]


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_nobody_joins_devices_that_are_held_by_different_sets(gpus: int) -> None:
    decisions = PARALLEL.decide(
        snapshot(
            [training("a", gpus=gpus, request=100)],
            two_gangs_that_overlap(),
            max_trainings_per_gpu=4,
        )
    )
    assert hold(decisions, "a").code is ReasonCode.GANG_INCOMPLETE


def test_a_training_on_one_device_does_not_join_a_gang() -> None:
    there = gang_on(0, 1)
    decisions = PARALLEL.decide(
        snapshot([training("a", request=100)], [device(0, there), device(1, there)])
    )
    held = hold(decisions, "a")
    assert held.code is ReasonCode.GANG_INCOMPLETE
    assert "'gang' has GPU 0 together with other devices" in held.reason


def test_no_device_at_all_holds_everybody() -> None:
    decisions = PARALLEL.decide(snapshot([training("a")], []))
    assert hold(decisions, "a").code is ReasonCode.NO_DEVICE


def test_full_devices_are_named_with_who_is_there() -> None:
    full = device(0, resident("x", 100), resident("y", 100))
    decisions = PARALLEL.decide(snapshot([training("a", request=1)], [full]))
    held = hold(decisions, "a")
    assert held.code is ReasonCode.NO_FREE_SLOT
    assert held.reason == "GPU 0 has 2 of 2 trainings: 'x' and 'y'."


def test_the_nearest_obstacle_is_the_reason_and_the_others_follow_as_alternatives() -> None:
    devices = [
        device(0, unavailable="lost"),
        device(1, resident("x", 100), resident("y", 100)),
        device(2, resident("z", 15000)),
    ]
    decisions = PARALLEL.decide(snapshot([training("a", request=2000)], devices))
    held = hold(decisions, "a")
    assert held.code is ReasonCode.INSUFFICIENT_MEMORY
    assert [other.code for other in held.alternatives] == [
        ReasonCode.NO_FREE_SLOT,
        ReasonCode.NO_DEVICE,
    ]


def test_alternatives_are_few_however_many_devices_there_are() -> None:
    devices = [device(i, resident(f"x{i}", 15500)) for i in range(20)]
    held = [training("large", 0, request=1000), training("small", 1, request=100)]
    decisions = PARALLEL.decide(snapshot(held, devices))
    assert len(hold(decisions, "large").alternatives) <= 5
    assert release(decisions, "small").alternatives[0].candidate == "large"


def test_observing_worker_says_what_it_would_have_shared() -> None:
    held = [training("a", 0, request=100), training("b", 1, request=100), training("c", 2)]
    decisions = PARALLEL.decide(snapshot(held, [device()], observe_only=True))
    assert released(decisions) == {"a": ("GPU-0",)}
    would = hold(decisions, "b")
    assert would.code is ReasonCode.OBSERVE_ONLY
    assert would.reason.startswith(
        "This worker only observes; otherwise released to GPU 0 beside 'a': first in the queue"
    )
    assert hold(decisions, "c").reason == "GPU 0 has 1 of 1 trainings: 'a'."


def test_what_an_observing_worker_would_share_takes_nobodys_slot() -> None:
    held = [training("a", 1, request=100), training("z", 2, gpus=0)]
    busy = device(0, resident("r", 100))
    decisions = PARALLEL.decide(snapshot(held, [busy], observe_only=True, free_slots=1))
    assert list(released(decisions)) == ["z"]


def test_processor_cores_are_named_as_such() -> None:
    core = Device(id="cpu-3", index=1, model="Xeon", memory_mib=4000)
    decisions = PARALLEL.decide(snapshot([training("a", request=100)], [core]))
    assert release(decisions, "a").reason == (
        "Released to CPU core 3, which is empty: first in the queue that fits, "
        "100 of 4000 MiB available."
    )


def test_nobody_reads_of_a_memory_that_is_not_known() -> None:
    unknown = device(0, memory=UNKNOWN_MEMORY_MIB)
    decisions = PARALLEL.decide(snapshot([training("a", request=1)], [unknown]))
    assert release(decisions, "a").reason.endswith("that fits, the device's memory unknown.")


def test_earlier_trainings_that_do_not_fit_are_the_alternatives_of_a_release() -> None:
    held = [training("large", 0, request=12000), training("small", 1, request=1000)]
    decisions = PARALLEL.decide(snapshot(held, [device(0, resident("r", 8000))]))
    (other,) = release(decisions, "small").alternatives
    assert (other.candidate, other.device) == ("large", "GPU-0")
    assert other.code is ReasonCode.INSUFFICIENT_MEMORY
    assert "but 'large' needs 12000 MiB." in other.reason
