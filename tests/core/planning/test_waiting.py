from __future__ import annotations

import pytest

from tests.core.building import device, hold, release, released, resident, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Device
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]


def busy(index: int, *remaining: float | None, memory: int = 16000) -> Device:
    """Build a device with one resident per remaining time."""
    residents = [
        resident(training(f"r{index}{number}", remaining_seconds=seconds), 3000, on=[index])
        for number, seconds in enumerate(remaining)
    ]
    return device(index, *residents, memory=memory)


OLD = training("old", 0, request=15000)
LATER = training("later", 5000, request=100)


def test_a_slot_is_reserved_for_who_waited_too_long() -> None:
    decisions = PARALLEL.decide(snapshot([OLD, LATER], [busy(0, None)], now=2000))
    assert released(decisions) == {}
    held = hold(decisions, "later")
    assert held.code is ReasonCode.OLDER_TRAINING_WAITS
    assert "GPU 0 is reserved for 'old'" in held.reason
    assert "GPU 0 is reserved for this training" in hold(decisions, "old").reason
    assert hold(decisions, "old").code is ReasonCode.INSUFFICIENT_MEMORY


def test_nothing_is_reserved_before_max_wait() -> None:
    decisions = PARALLEL.decide(snapshot([OLD, LATER], [busy(0, None)], now=1800))
    assert released(decisions) == {"later": ("GPU-0",)}


def test_the_device_that_drains_first_is_reserved() -> None:
    devices = [busy(0, 900.0), busy(1, 100.0), busy(2, None)]
    decisions = PARALLEL.decide(snapshot([OLD, LATER], devices, now=2000))
    assert "GPU 1 is reserved for this training" in hold(decisions, "old").reason
    assert released(decisions) == {"later": ("GPU-0",)}


def test_without_known_ends_the_device_with_fewest_trainings_is_reserved() -> None:
    devices = [busy(0, None, 5.0), busy(1, None), busy(2, None, None)]
    decisions = PARALLEL.decide(snapshot([OLD], devices, now=2000, max_trainings_per_gpu=4))
    assert "GPU 1 is reserved for this training" in hold(decisions, "old").reason


def test_a_device_filled_by_others_is_reserved_last() -> None:
    devices = [device(0, used_mib=9000), busy(1, 100.0)]
    decisions = PARALLEL.decide(snapshot([OLD], devices, now=2000))
    assert "GPU 1 is reserved for this training" in hold(decisions, "old").reason


def test_unavailable_or_too_small_devices_are_not_reserved() -> None:
    devices = [
        device(0, unavailable="lost"),
        busy(1, 1.0, memory=8000),
        busy(2, 500.0),
    ]
    decisions = PARALLEL.decide(snapshot([OLD], devices, now=2000))
    assert "GPU 2 is reserved for this training" in hold(decisions, "old").reason


def test_who_waited_longest_comes_first_whatever_the_priority() -> None:
    low = training("low", 0, request=9000, priority=9)
    high = training("high", 100, request=9000, priority=1)
    decisions = PARALLEL.decide(snapshot([low, high], [device()], now=5000))
    assert released(decisions) == {"low": ("GPU-0",)}
    assert "waited 5000 s, longer than 1800 s" in release(decisions, "low").reason


def test_each_overdue_training_has_devices_reserved() -> None:
    second = training("second", 1, request=15500)
    devices = [busy(0, 100.0), busy(1, 200.0), busy(2, 300.0)]
    decisions = PARALLEL.decide(snapshot([OLD, second, LATER], devices, now=2000))
    assert "GPU 0 is reserved for this training" in hold(decisions, "old").reason
    assert "GPU 1 is reserved for this training" in hold(decisions, "second").reason
    assert released(decisions) == {"later": ("GPU-2",)}


def test_nobody_comes_in_between_once_every_device_is_reserved() -> None:
    second = training("second", 1, request=15500)
    decisions = PARALLEL.decide(snapshot([OLD, second, LATER], [busy(0, 100.0)], now=2000))
    assert released(decisions) == {}
    assert hold(decisions, "later").code is ReasonCode.OLDER_TRAINING_WAITS


@pytest.mark.parametrize("policy", POLICIES)
def test_what_fits_in_between_goes_to_the_overdue_first(policy: str) -> None:
    gang = training("gang", 0, gpus=2, request=15000)
    overdue = training("overdue", 1, request=15000, remaining_seconds=250.0)
    later = training("later", 1900, request=15000, remaining_seconds=100.0, priority=0)
    now = snapshot([gang, overdue, later], [busy(0, 300.0), device(1)], now=2000)
    assert released(POLICIES[policy].decide(now)) == {"overdue": ("GPU-1",)}


def test_among_those_submitted_at_once_nobody_waits_for_another() -> None:
    small = training("small", 0, request=100)
    decisions = PARALLEL.decide(snapshot([OLD, small], [busy(0, 100.0)], now=2000))
    assert released(decisions) == {"small": ("GPU-0",)}


def test_who_ends_before_the_reserved_start_is_backfilled() -> None:
    gang = training("gang", 0, gpus=2, request=15000)
    short = training("short", 1900, request=15000, remaining_seconds=300.0)
    long = training("long", 1901, request=15000, remaining_seconds=301.0)
    unknown = training("unknown", 1902, request=15000)
    devices = [busy(0, 300.0), device(1)]
    for name, who, expected in (
        ("short", short, {"short": ("GPU-1",)}),
        ("long", long, {}),
        ("unknown", unknown, {}),
    ):
        decisions = PARALLEL.decide(snapshot([gang, who], devices, now=2000))
        assert released(decisions) == expected, name


def test_a_partner_that_slows_down_who_is_waited_for_is_not_backfilled() -> None:
    old = training("old", 0, request=15000)
    running = training("running", active=0.5, peak=500, remaining_seconds=300.0)
    idle = training("idle", 1900, active=0.0, peak=500, remaining_seconds=10.0)
    busy_one = training("busy", 1900, active=0.5, peak=500, remaining_seconds=10.0)
    there = [device(0, resident(running, 3000))]
    assert released(PARALLEL.decide(snapshot([old, busy_one], there, now=2000))) == {}
    assert released(PARALLEL.decide(snapshot([old, idle], there, now=2000))) == {"idle": ("GPU-0",)}


def test_the_reserved_start_is_when_it_fits_not_when_all_have_ended() -> None:
    devices = [
        device(
            0,
            *[
                resident(training(f"a{i}", remaining_seconds=s), 7000)
                for i, s in ((0, 50.0), (1, 9000.0))
            ],
        ),
        busy(1, 400.0),
    ]
    old = training("old", 0, request=8000)
    decisions = PARALLEL.decide(snapshot([old, LATER], devices, now=2000, max_trainings_per_gpu=2))
    assert release(decisions, "old").devices == ("GPU-1",)
    big = training("big", 0, request=8500)
    full = [
        devices[0],
        device(
            1,
            resident(training("b", remaining_seconds=400.0), 9000),
            resident(training("c", remaining_seconds=500.0), 7000),
        ),
    ]
    decisions = PARALLEL.decide(snapshot([big], full, now=2000))
    assert "GPU 0 is reserved for this training" in hold(decisions, "big").reason


def test_an_earlier_training_may_still_use_the_reserved_device() -> None:
    young_but_early = training("early", -1, request=100, priority=1)
    waiting = training("waiting", 0, request=15000)
    limits = {"max_wait_seconds": 1999.5}
    decisions = PARALLEL.decide(
        snapshot([young_but_early, waiting], [busy(0, None)], now=2000, **limits)
    )
    assert "early" in released(decisions)


def test_who_is_kept_by_a_limit_gets_no_reservation() -> None:
    paused = training("paused", 0, request=15000, queue="slow")
    decisions = PARALLEL.decide(
        snapshot([paused, LATER], [busy(0, None)], now=2000, paused_queues=frozenset({"slow"}))
    )
    assert released(decisions) == {"later": ("GPU-0",)}


def test_a_gang_gets_as_many_devices_as_it_needs() -> None:
    gang = training("gang", 0, gpus=2, request=1000)
    devices = [busy(0, 50.0), busy(1, 900.0), busy(2, 60.0)]
    decisions = PARALLEL.decide(snapshot([gang, LATER], devices, now=2000))
    assert "GPU 0 and GPU 2 are reserved for this training" in hold(decisions, "gang").reason
    assert released(decisions) == {"later": ("GPU-1",)}


def test_a_gang_is_not_starved_by_trainings_that_need_one_device() -> None:
    gang = training("gang", 0, gpus=2, request=1000)
    devices = [busy(0, 50.0), device(1)]
    decisions = PARALLEL.decide(snapshot([gang, LATER], devices, now=2000))
    assert released(decisions) == {}
    decisions = PARALLEL.decide(snapshot([gang, LATER], [device(0), device(1)], now=2000))
    assert release(decisions, "gang").devices == ("GPU-0", "GPU-1")


def test_who_can_start_now_starts_and_nothing_is_reserved() -> None:
    decisions = PARALLEL.decide(snapshot([OLD, LATER], [device(0), busy(1, None)], now=2000))
    assert released(decisions)["old"] == ("GPU-0",)
    assert "later" in released(decisions)
