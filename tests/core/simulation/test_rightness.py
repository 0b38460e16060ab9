"""The simulator against an independent one, and what must hold for any queue and policy."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.building import MODEL, device
from tests.core.simulation.worlds import finished, run, submission, world
from xonar_prefect.core.models import Limits, Profile
from xonar_prefect.core.policies import POLICIES
from xonar_prefect.core.simulation import Run, Submission, World, simulate

KINDS = {"a": 0.1, "b": 0.35, "c": 0.6, "d": 1.0}
PEAKS = {"a": 1000, "b": 4000, "c": 8000, "d": 12000}


def first_come_first_served(
    queue: Sequence[tuple[str, int, int]], *, devices: int, slots: int
) -> list[Fraction]:
    """Return when each training ends; exact, in rational numbers, moment by moment.

    Args:
        queue: Kind, duration alone and submission of each.
        devices: Number of devices.
        slots: One or two trainings on each.
    """
    now = Fraction(0)
    to_come = sorted(range(len(queue)), key=lambda number: (queue[number][2], number))
    left = {number: Fraction(queue[number][1]) for number in to_come}
    on: list[list[int]] = [[] for _ in range(devices)]
    ends: dict[int, Fraction] = {}

    def speed(number: int, there: list[int]) -> Fraction:
        product = Fraction(1)
        for each in there:
            product *= Fraction(str(KINDS[queue[each][0]]))
        return 1 / (1 + product) if len(there) == 2 else Fraction(1)

    while len(ends) < len(queue):
        while to_come and queue[to_come[0]][2] <= now:
            there = min(on, key=len)
            if len(there) == slots:
                break
            there.append(to_come.pop(0))
        steps = [left[number] / speed(number, there) for there in on for number in there]
        if to_come and queue[to_come[0]][2] > now:
            steps.append(queue[to_come[0]][2] - now)
        step = min(steps)
        for there in on:
            for number, rate in [(number, speed(number, there)) for number in there]:
                left[number] -= step * rate
        now += step
        for there in on:
            for number in [number for number in there if left[number] == 0]:
                there.remove(number)
                ends[number] = now
    return [ends[number] for number in range(len(queue))]


def test_the_independent_simulation_knows_a_case_worked_out_by_hand() -> None:
    # two fully active ones share until 20 s; the third then runs alone
    queue = [("d", 10, 0), ("d", 10, 0), ("d", 5, 0)]
    assert first_come_first_served(queue, devices=1, slots=2) == [20, 20, 25]


few = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 40), st.integers(0, 60)),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60)
@given(queue=few, devices=st.integers(1, 3), policy=st.sampled_from(["parallel", "serial"]))
def test_tiny_queues_end_as_in_an_independent_simulation(
    queue: list[tuple[str, int, int]], devices: int, policy: str
) -> None:
    result = run(
        world(KINDS, devices=devices),
        *(
            submission(str(number), seconds, at, kind=kind)
            for number, (kind, seconds, at) in enumerate(queue)
        ),
        policy=policy,
    )
    slots = 2 if policy == "parallel" else 1
    expected = first_come_first_served(queue, devices=devices, slots=slots)
    ends = finished(result)
    for number, end in enumerate(expected):
        assert ends[str(number)] == pytest.approx(float(end), abs=1e-6)


def mixed(*, profiled: bool, startup: float) -> World:
    """Build three devices of 16000 MiB for kinds of which not every pair fits."""
    profiles = {
        kind: {
            MODEL: Profile(
                key=kind,
                device_model=MODEL,
                active_fraction=fraction,
                step_seconds=0.2,
                peak_memory_mib=PEAKS[kind],
            )
        }
        for kind, fraction in KINDS.items()
    }
    return world(
        KINDS,
        devices=[device(index) for index in range(3)],
        profiles=profiles,
        profiled=profiled,
        startup_seconds=startup,
        limits=Limits(max_wait_seconds=50),
    )


queues = st.lists(
    st.builds(
        Submission,
        name=st.uuids().map(str),
        kind=st.sampled_from(sorted(KINDS)),
        submitted_at_s=st.floats(0, 100),
        solo_seconds=st.floats(0.5, 60),
        gpus=st.sampled_from([1, 1, 1, 2, 3, 4]),
        priority=st.integers(1, 2),
    ),
    min_size=1,
    max_size=12,
)
anywhere = st.builds(mixed, profiled=st.booleans(), startup=st.sampled_from([0.0, 3.0]))


def at_once(result: Run, device_id: str) -> list[list[str]]:
    """Return which kinds were on a device together, after each start there."""
    there = [each for each in result.outcomes if device_id in each.devices]
    return [
        [
            each.submission.kind
            for each in there
            if each.started_at_s <= moment.started_at_s < each.finished_at_s
        ]
        for moment in there
    ]


@settings(max_examples=80)
@given(where=anywhere, queue=queues, policy=st.sampled_from(sorted(POLICIES)))
def test_no_training_is_lost_and_no_device_is_over_its_memory(
    where: World, queue: list[Submission], policy: str
) -> None:
    result = simulate(where, queue, POLICIES[policy])

    served = {each.submission.name for each in result.outcomes}
    refused = {each.training.name for each in result.refused}
    assert served | refused == {each.name for each in queue}
    assert refused == {each.name for each in queue if each.gpus > len(where.devices)}
    assert not result.losses
    for each in where.devices:
        for kinds in at_once(result, each.id):
            assert len(kinds) <= 2
            assert sum(PEAKS[kind] for kind in kinds) <= each.memory_mib


@settings(max_examples=80)
@given(where=anywhere, queue=queues, policy=st.sampled_from(sorted(POLICIES)))
def test_nobody_is_faster_than_alone_or_slower_than_the_worst_partner_allows(
    where: World, queue: list[Submission], policy: str
) -> None:
    for each in simulate(where, queue, POLICIES[policy]).outcomes:
        taken = each.finished_at_s - each.started_at_s - where.startup_seconds
        alone = each.submission.solo_seconds
        # the clock takes what is a nanosecond apart as one moment
        assert taken >= alone * (1 - 1e-9) - 2e-9
        assert taken <= alone * (1 + KINDS[each.submission.kind]) * (1 + 1e-9) + 2e-9
        assert len(each.devices) == each.submission.gpus
        assert each.started_at_s >= each.submission.submitted_at_s - 1e-9


@settings(max_examples=40)
@given(
    seconds=st.lists(st.floats(1, 100), min_size=1, max_size=8),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_work_is_conserved(seconds: list[float], policy: str) -> None:
    """However the always active share a device, it has done all work when it has had the time."""
    busy = [submission(str(n), each, kind="d") for n, each in enumerate(seconds)]
    result = simulate(world(KINDS), busy, POLICIES[policy])
    assert max(each.finished_at_s for each in result.outcomes) == pytest.approx(sum(seconds))


@settings(max_examples=30)
@given(where=anywhere, queue=queues, policy=st.sampled_from(sorted(POLICIES)))
def test_the_same_queue_gives_the_same_result(
    where: World, queue: list[Submission], policy: str
) -> None:
    assert simulate(where, queue, POLICIES[policy]) == simulate(where, queue, POLICIES[policy])
