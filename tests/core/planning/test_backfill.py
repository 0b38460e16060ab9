"""Backfill, proved on whole simulated queues: who waited too long starts no later for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.building import MODEL, device, profile
from xonar_prefect.core.decisions import Decision, Hold
from xonar_prefect.core.models import Limits, Snapshot
from xonar_prefect.core.policies import POLICIES
from xonar_prefect.core.simulation import Submission, World, simulate
from xonar_prefect.core.simulation.overtaking import OvertakingWatch, waited_beyond_bound
from xonar_prefect.core.simulation.truth import ProcessorSharing

ACTIVE = {"idle": 0.1, "half": 0.5, "busy": 0.9}
MAX_WAIT_S = 100.0


def world_of(devices: int) -> World:
    return World(
        devices=tuple(device(index, memory=1000) for index in range(devices)),
        truth=ProcessorSharing(
            active_fractions={(MODEL, kind): active for kind, active in ACTIVE.items()},
            sharing_cost=0.1,  # what the model believes at first
        ),
        profiles={kind: {MODEL: profile(kind, active, 100)} for kind, active in ACTIVE.items()},
        reference_models=(MODEL,),
        limits=Limits(max_wait_seconds=MAX_WAIT_S, margin_ratio=0.0, margin_mib=0),
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[World, list[Submission]]:
    devices = draw(st.integers(1, 3))
    submissions = [
        Submission(
            name=f"t{number}",
            kind=draw(st.sampled_from(sorted(ACTIVE))),
            submitted_at_s=draw(st.integers(0, 20)) * 10.0 + number,
            solo_seconds=draw(st.integers(1, 30)) * 10.0,
            gpus=draw(st.sampled_from([1, 1, 1, min(2, devices)])),
            memory_request_mib=draw(st.sampled_from([200, 400, 700, 1000])),
            priority=draw(st.sampled_from([1, 1, 2])),
        )
        for number in range(draw(st.integers(2, 9)))
    ]
    return world_of(devices), sorted(submissions, key=lambda each: each.submitted_at_s)


def starts(world: World, queue: list[Submission]) -> dict[str, float]:
    run = simulate(world, queue, POLICIES["parallel"])
    return {outcome.submission.name: outcome.started_at_s for outcome in run.outcomes}


@settings(max_examples=150)
@given(queues())
def test_the_longest_waiting_starts_no_later_for_all_that_was_submitted_after_it(
    case: tuple[World, list[Submission]],
) -> None:
    world, queue = case
    overdue: list[tuple[float, str]] = []

    def watch(snapshot: Snapshot, decisions: tuple[Decision, ...]) -> None:
        late = [
            decision.training
            for decision in decisions
            if isinstance(decision, Hold)
            and snapshot.now_s - decision.training.submitted_at_s > MAX_WAIT_S
        ]
        if late and not overdue:
            oldest = min(late, key=lambda training: training.submitted_at_s)
            overdue.append((snapshot.now_s, oldest.name))

    run = simulate(world, queue, POLICIES["parallel"], watch=watch)
    if not overdue:
        return
    since_s, name = overdue[0]
    started = {outcome.submission.name: outcome.started_at_s for outcome in run.outcomes}
    submitted = {each.name: each.submitted_at_s for each in queue}
    without_later = [
        each
        for each in queue
        if submitted[each.name] <= submitted[name] or started[each.name] < since_s
    ]
    assert started[name] <= starts(world, without_later)[name] + 1e-3


@pytest.mark.parametrize("policy", ["parallel", "serial", "adaptive"])
@settings(max_examples=100)
@given(case=queues())
def test_nobody_takes_what_an_overdue_training_could_have_had(
    policy: str, case: tuple[World, list[Submission]]
) -> None:
    world, queue = case
    watch = OvertakingWatch()
    run = simulate(world, queue, POLICIES[policy], watch=watch)
    assert waited_beyond_bound(run.outcomes, MAX_WAIT_S) == 0
    assert watch.count == 0


def submission(
    name: str, submitted_at_s: float, solo_seconds: float, gpus: int, **changes: Any
) -> Submission:
    usual = {"kind": "busy", "priority": 1, "memory_request_mib": 200}
    return Submission(
        name=name,
        submitted_at_s=submitted_at_s,
        solo_seconds=solo_seconds,
        gpus=gpus,
        **{**usual, **changes},
    )


def test_an_overdue_gang_does_not_wait_for_who_was_submitted_later() -> None:
    """One of its two devices is reserved for an older one, the other must not go to later ones."""
    queue = [
        submission("first", 1.0, 10.0, 1),
        submission("gang", 8.0, 80.0, 2),
        submission("joins", 16.0, 40.0, 2),
        submission("one", 17.0, 80.0, 1),
        submission("two", 20.0, 80.0, 1),
        submission("large", 23.0, 10.0, 1, memory_request_mib=1000),
        submission("three", 25.0, 30.0, 1, priority=2, memory_request_mib=400),
        submission("waits", 32.0, 10.0, 2),
        submission("later", 34.0, 60.0, 1, kind="half"),
    ]
    run = simulate(world_of(2), queue, POLICIES["adaptive"])
    assert waited_beyond_bound(run.outcomes, MAX_WAIT_S) == 0


def test_what_an_overdue_gang_leaves_for_a_while_goes_to_the_overdue_first() -> None:
    queue = [
        submission("gang", 0.0, 90.0, 2),
        submission("idle", 4.0, 180.0, 1, kind="idle"),
        submission("whole", 5.0, 160.0, 2, memory_request_mib=1000),
        submission("long", 6.0, 200.0, 1),
        submission("next", 93.0, 10.0, 2),
        submission("overdue", 101.0, 20.0, 1),
        submission("shorter", 102.0, 10.0, 1),
    ]
    watch = OvertakingWatch()
    simulate(world_of(3), queue, POLICIES["adaptive"], watch=watch)
    assert watch.count == 0


def test_an_overdue_gang_is_done_before_a_larger_one_that_has_every_device_reserved() -> None:
    queue = [
        submission("longest", 0.0, 2000.0, 1),
        submission("short", 0.0, 300.0, 1),
        submission("longer", 0.0, 400.0, 1),
        submission("all", 10.0, 1000.0, 3),
        submission("pair", 20.0, 100.0, 2),
        submission("later", 210.0, 190.0, 1),
    ]
    queue = [replace(each, memory_request_mib=1000) for each in queue]
    assert starts(world_of(3), queue)["pair"] == pytest.approx(400.0)


def test_who_comes_in_between_has_to_start_up_as_well() -> None:
    queue = [
        submission("longer", 0.0, 1000.0, 1),
        submission("short", 0.0, 300.0, 1),
        submission("gang", 10.0, 500.0, 2),
        submission("later", 250.0, 700.0, 1),
    ]
    queue = [replace(each, memory_request_mib=1000) for each in queue]
    world = replace(world_of(2), startup_seconds=60.0)
    assert starts(world, queue)["gang"] == pytest.approx(1060.0)
