"""The host around the devices: what fits, what waits and what never will, with the arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.building import MODEL, by_name, device, hold, refusal, released, training
from xonar_prefect.core.decisions import Decision, ReasonCode
from xonar_prefect.core.hosts import Disk, Host, HostResident
from xonar_prefect.core.models import (
    Limits,
    Profile,
    Snapshot,
    Training,
)
from xonar_prefect.core.planning.hosting import HostNeed, need_of
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]
HOST = Host(memory_mib=10_000, headroom_mib=500, share_mib=1000, cpu_threads=8)
LIMITS = Limits(margin_ratio=0.1, margin_mib=64)
DISK = Disk(path="/home/xonar", free_mib=5000, least_free_mib=1024)


def small(name: str, submitted: float = 0.0, **values: Any) -> Training:
    return training(name, submitted, request=100, **values)


def decide(
    held: list[Training], host: Host, *, now: float = 100.0, **limits: Any
) -> tuple[Decision, ...]:
    return PARALLEL.decide(
        Snapshot(
            now_s=now,
            held=tuple(held),
            devices=tuple(device(index) for index in range(4)),
            host=host,
            limits=Limits(**limits),
        )
    )


def seen(who: Training, peak_host_mib: int) -> Training:
    """Return the training with a measured peak of main memory."""
    profile = Profile(key=who.name, device_model=MODEL, peak_host_memory_mib=peak_host_mib)
    return replace(who, profiles={MODEL: profile})


# ---- needs ----


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        (small("a"), HostNeed(1000, memory_known=False)),
        (small("gang", gpus=2), HostNeed(2000, memory_known=False)),
        (small("z", gpus=0), HostNeed(1000, memory_known=False)),
        (small("a", host_memory_mib=300, cpu_threads=2), HostNeed(300, 2)),
        (small("a", shared_memory_mib=64), HostNeed(1000, 0, 64, memory_known=False)),
        (seen(small("a"), 2000), HostNeed(2200)),
        (seen(small("a", host_memory_mib=300), 2000), HostNeed(2200)),
        (seen(small("a", host_memory_mib=3000), 2000), HostNeed(3000)),
        (seen(small("a"), 9400), HostNeed(9500)),
    ],
    ids=[
        "unknown is an even share",
        "a gang of two has two",
        "without a device it counts too",
        "declared",
        "shared memory is declared",
        "measured with a margin",
        "never below what was measured",
        "the owner knows of growth",
        "what has run here before fits here",
    ],
)
def test_the_need_is_the_larger_of_declared_and_measured(who: Training, expected: HostNeed) -> None:
    assert need_of(who, HOST, LIMITS) == expected


# ---- what fits ----


def test_without_knowledge_of_the_host_there_is_no_rule() -> None:
    held = [small(f"t{i}", i, host_memory_mib=10**6, cpu_threads=999) for i in range(8)]
    assert len(released(decide(held, Host()))) == 8


def test_each_release_uses_up_main_memory_with_or_without_a_device() -> None:
    held = [
        small("a", 0, host_memory_mib=4000),
        small("b", 1, host_memory_mib=4000, gpus=0),
        small("c", 2, host_memory_mib=4000),
        small("d", 3, host_memory_mib=1500),
    ]
    decisions = decide(held, HOST)
    assert set(released(decisions)) == {"a", "b", "d"}
    held_back = hold(decisions, "c")
    assert held_back.code is ReasonCode.INSUFFICIENT_HOST_MEMORY


def test_a_shortage_of_main_memory_shows_the_arithmetic() -> None:
    host = replace(
        HOST,
        used_memory_mib=3000,
        residents=(HostResident(training=small("r", host_memory_mib=4000), used_memory_mib=1000),),
    )
    decisions = decide([small("a", host_memory_mib=4000)], host)
    assert hold(decisions, "a").reason == (
        "This host has 3500 MiB of main memory available of 10000 MiB (2000 in use by others, 4000 "
        "reserved for 1 training, headroom 500), but this training needs 4000 MiB."
    )


def test_a_guessed_need_is_called_so_and_the_remedy_is_named() -> None:
    decisions = decide([small("a")], replace(HOST, used_memory_mib=9000))
    reason = hold(decisions, "a").reason
    assert "needs 1000 MiB, an even share, as its use is neither measured nor declared" in reason
    assert "`host_memory_mib`" in reason


def test_a_training_that_outgrew_its_request_counts_with_its_use() -> None:
    grown = HostResident(training=small("r", host_memory_mib=1000), used_memory_mib=6000)
    host = replace(HOST, used_memory_mib=6000, residents=(grown,))
    assert set(released(decide([small("a", host_memory_mib=3500)], host))) == {"a"}
    assert set(released(decide([small("a", host_memory_mib=3501)], host))) == set()


def test_threads_are_reserved_where_they_were_declared_only() -> None:
    held = [small("a", 0, cpu_threads=6), small("b", 1, cpu_threads=3), small("c", 2)]
    decisions = decide(held, HOST)
    assert set(released(decisions)) == {"a", "c"}
    assert hold(decisions, "b").code is ReasonCode.INSUFFICIENT_CPU_THREADS
    assert hold(decisions, "b").reason == (
        "This host has 2 processor threads available of 8 (the others are reserved), but this "
        "training needs 3."
    )


def test_shared_memory_in_use_counts_beside_what_is_reserved() -> None:
    host = replace(HOST, shared_memory_mib=1000, used_shared_memory_mib=200)
    held = [small("a", 0, shared_memory_mib=500), small("b", 1, shared_memory_mib=400), small("c")]
    decisions = decide(held, host)
    assert set(released(decisions)) == {"a", "c"}
    assert hold(decisions, "b").code is ReasonCode.INSUFFICIENT_SHARED_MEMORY
    assert hold(decisions, "b").reason == (
        "Shared memory has 300 MiB available of 1000 MiB (200 in use, 500 reserved), but this "
        "training needs 400 MiB."
    )


def test_a_backlog_does_not_start_in_one_moment() -> None:
    decisions = decide([small(f"t{i}", i) for i in range(8)], Host(), free_starts=3)
    assert set(released(decisions)) == {"t0", "t1", "t2"}
    assert hold(decisions, "t3").code is ReasonCode.STARTS_LIMITED


# ---- what never fits ----


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (
            {"host_memory_mib": 9501},
            (
                "9501 MiB of main memory, but this host offers 9500 even when nothing runs on it "
                "(10000 in all, headroom 500); lower its job variable `host_memory_mib`, or"
            ),
        ),
        ({"cpu_threads": 9}, "9 processor threads, but this host offers 8 even when"),
        ({"shared_memory_mib": 65}, "65 MiB of shared memory, but this host offers 64 even when"),
    ],
)
@pytest.mark.parametrize("gpus", [0, 1])
def test_what_could_never_fit_is_refused_with_the_arithmetic(
    asks: dict[str, int], words: str, gpus: int
) -> None:
    host = replace(HOST, shared_memory_mib=64)
    decisions = decide([small("a", gpus=gpus, **asks), small("b", 1)], host)
    refused = refusal(decisions, "a")
    assert refused.code is ReasonCode.NEVER_FITS
    assert words in refused.reason
    assert set(released(decisions)) == {"b"}


def test_what_others_use_now_may_come_back() -> None:
    decisions = decide([small("a", host_memory_mib=9500)], replace(HOST, used_memory_mib=9000))
    assert hold(decisions, "a").code is ReasonCode.INSUFFICIENT_HOST_MEMORY


# ---- max_wait ----


def busy_host(used: int = 0) -> Host:
    running = HostResident(training=small("r", host_memory_mib=6000))
    return replace(HOST, used_memory_mib=used, residents=(running,))


def test_no_later_training_takes_the_memory_that_an_overdue_one_waits_for() -> None:
    held = [small("large", 0, host_memory_mib=8000), small("b", 50, host_memory_mib=1000)]
    assert set(released(decide(held, busy_host(), max_wait_seconds=1000))) == {"b"}
    decisions = decide(held, busy_host(), max_wait_seconds=60)
    assert released(decisions) == {}
    assert hold(decisions, "large").code is ReasonCode.INSUFFICIENT_HOST_MEMORY
    assert hold(decisions, "b").code is ReasonCode.OLDER_TRAINING_WAITS
    assert hold(decisions, "b").reason == (
        "What is left of this host is kept for 'large', which was submitted earlier and has waited "
        "longer than 60 s."
    )


def test_it_is_kept_for_an_overdue_training_without_a_device_too() -> None:
    held = [
        small("large", 0, host_memory_mib=8000, gpus=0),
        small("b", 50, host_memory_mib=1000, gpus=0),
    ]
    assert released(decide(held, busy_host(), max_wait_seconds=60)) == {}


def test_nothing_is_kept_for_what_would_not_start_when_ours_have_ended() -> None:
    held = [small("large", 0, host_memory_mib=8000), small("b", 50, host_memory_mib=1000)]
    assert set(released(decide(held, busy_host(used=2000), max_wait_seconds=60))) == {"b"}


def test_what_is_left_beside_the_kept_may_be_used() -> None:
    held = [small("threads", 0, host_memory_mib=100, cpu_threads=8), small("b", 50, gpus=0)]
    running = HostResident(training=small("r", host_memory_mib=100, cpu_threads=1))
    decisions = decide(held, replace(HOST, residents=(running,)), max_wait_seconds=60)
    assert hold(decisions, "threads").code is ReasonCode.INSUFFICIENT_CPU_THREADS
    assert set(released(decisions)) == {"b"}


# ---- the disk ----


@pytest.mark.parametrize(
    ("disk", "reason"),
    [
        (
            replace(DISK, free_mib=1023),
            (
                "The file system of /home/xonar has 1023 MiB free, but 1024 are kept "
                "for the trainings that run (XONAR_LEAST_FREE_DISK_MIB); nothing is "
                "released until there are more."
            ),
        ),
        (
            replace(DISK, free_inodes=9, least_free_inodes=10),
            (
                "The file system of /home/xonar has 9 inodes free, but 10 are kept "
                "for the trainings that run (XONAR_LEAST_FREE_INODES); nothing is "
                "released until there are more."
            ),
        ),
        (
            replace(DISK, problem="Disk quota exceeded"),
            (
                "Nothing can be written to /home/xonar (Disk quota exceeded); nothing is released "
                "until that is mended."
            ),
        ),
    ],
)
def test_a_full_disk_stops_releases_with_the_arithmetic(disk: Disk, reason: str) -> None:
    decisions = decide([small("a"), small("z", 1, gpus=0)], Host(disk=disk))
    assert released(decisions) == {}
    for name in ("a", "z"):
        assert hold(decisions, name).code is ReasonCode.DISK_FULL
        assert hold(decisions, name).reason == reason


@pytest.mark.parametrize(
    "disk",
    [replace(DISK, free_mib=1024), replace(DISK, free_inodes=None, least_free_inodes=10)],
)
def test_a_disk_with_room_or_without_a_count_of_inodes_stops_nothing(disk: Disk) -> None:
    assert set(released(decide([small("a")], Host(disk=disk)))) == {"a"}


# ---- always ----

MEMORY = st.none() | st.integers(1, 6000)


@st.composite
def trainings(draw: st.DrawFn, prefix: str) -> list[Training]:
    made = [
        small(
            f"{prefix}{number}",
            draw(st.integers(0, 90)),
            gpus=draw(st.sampled_from([1, 1, 0, 2])),
            host_memory_mib=draw(MEMORY),
            cpu_threads=draw(st.none() | st.integers(1, 8)),
            shared_memory_mib=draw(st.none() | st.integers(1, 900)),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    return [seen(who, draw(st.integers(1, 6000))) if draw(st.booleans()) else who for who in made]


@given(
    held=trainings("t"),
    running=trainings("r"),
    used=st.lists(st.integers(0, 4000), min_size=6, max_size=6),
    foreign=st.integers(0, 9000),
    shared=st.integers(0, 900),
    max_wait=st.sampled_from([0.0, 50.0, 1000.0]),
)
def test_the_host_is_never_given_away_twice_with_everything_at_full_request(
    held: list[Training],
    running: list[Training],
    used: list[int],
    foreign: int,
    shared: int,
    max_wait: float,
) -> None:
    residents = tuple(
        HostResident(training=who, used_memory_mib=use)
        for who, use in zip(running, used, strict=False)
    )
    ours = sum(each.used_memory_mib for each in residents)
    host = replace(
        HOST,
        used_memory_mib=foreign + ours,
        shared_memory_mib=1000,
        used_shared_memory_mib=shared,
        residents=residents,
    )
    decisions = decide(held, host, max_wait_seconds=max_wait)
    new = [by_name(decisions)[name].training for name in released(decisions)]
    if not new:
        return
    needs = [need_of(who, host, Limits()) for who in new]
    there = [need_of(who, host, Limits()) for who in running]
    reserved = sum(
        max(need.memory_mib, each.used_memory_mib)
        for need, each in zip(there, residents, strict=True)
    )
    assert reserved + sum(need.memory_mib for need in needs) + foreign + 500 <= 10_000
    threads = [need.cpu_threads for need in needs]
    assert not any(threads) or sum(threads) + sum(need.cpu_threads for need in there) <= 8
    shares = [need.shared_memory_mib for need in needs]
    assert not any(shares) or (
        sum(shares) + sum(need.shared_memory_mib for need in there) + shared <= 1000
    )


def test_a_limit_that_passes_is_not_shown_where_there_is_no_place_either() -> None:
    held = [training(f"t{i}", i, request=16000) for i in range(6)]
    decisions = decide(held, Host(), free_starts=3)
    assert set(released(decisions)) == {"t0", "t1", "t2"}
    # One device is still empty; then there is none.
    assert hold(decisions, "t3").code is ReasonCode.STARTS_LIMITED
    decisions = decide(held, Host(), free_starts=4)
    assert hold(decisions, "t4").code is ReasonCode.INSUFFICIENT_MEMORY
    without = decide([small("z", gpus=0)], Host(), free_starts=0)
    assert hold(without, "z").code is ReasonCode.STARTS_LIMITED
