from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tests.core.building import MODEL, device
from tests.core.simulation.worlds import finished, profiles, run, started, submission, world
from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    ReasonCode,
    Release,
)
from xonar_prefect.core.metrics import Service
from xonar_prefect.core.models import (
    Limits,
    Profile,
    Snapshot,
)
from xonar_prefect.core.policies import policy_named
from xonar_prefect.core.simulation import MeasuredPairs, ProcessorSharing, simulate
from xonar_prefect.core.simulation.world import STARTING_UP
from xonar_prefect.errors import SimulationStalledError

HALF = {"a": 0.5, "b": 0.5, "c": 0.5}


def test_one_device_serially_is_a_sum_of_durations() -> None:
    result = run(
        world(HALF),
        submission("a", 10),
        submission("b", 20),
        submission("c", 30, at=5),
        policy="serial",
    )
    assert finished(result) == {"a": 10, "b": 30, "c": 60}
    assert result.service == Service(
        average_jct_s=(10 + 30 + 55) / 3,
        p95_jct_s=55,
        makespan_s=60,
        average_queueing_delay_s=(0 + 10 + 25) / 3,
    )


def test_two_that_share_from_start_to_end_slow_down_by_one_plus_u_times_v() -> None:
    result = run(world({"a": 0.6, "b": 0.5}), submission("a", 10), submission("b", 10))
    assert finished(result) == {"a": pytest.approx(13), "b": pytest.approx(13)}


def test_who_stays_behind_is_as_fast_as_alone() -> None:
    result = run(world({"a": 0.5, "b": 0.5}), submission("a", 10), submission("b", 30))
    # together until 12.5 s, in which b does 10 of its 30 seconds
    assert finished(result) == {"a": pytest.approx(12.5), "b": pytest.approx(32.5)}


def test_who_joins_later_slows_down_from_then_on() -> None:
    result = run(world({"a": 0.5, "b": 0.5}), submission("a", 20), submission("b", 10, at=10))
    assert finished(result) == {"a": pytest.approx(22.5), "b": pytest.approx(22.5)}


def test_three_share_by_mean_value_analysis() -> None:
    three = world(HALF, limits=Limits(max_trainings_per_gpu=3))
    result = run(three, *(submission(name, 10) for name in HALF))
    assert finished(result) == pytest.approx(dict.fromkeys(HALF, 16.0))


def test_a_gang_starts_on_all_devices_at_once_and_shares_them_with_its_like_only() -> None:
    result = run(
        world(HALF, devices=2),
        submission("a", 10, gpus=1),
        submission("b", 10, gpus=2),
        submission("c", 10, gpus=2),
    )
    assert started(result) == {"a": 0, "b": 10, "c": 10}
    assert finished(result) == pytest.approx({"a": 10, "b": 22.5, "c": 22.5})


def test_start_up_takes_a_slot_but_disturbs_nobody() -> None:
    result = run(
        world({"a": 0.5, "b": 0.5}, startup_seconds=5),
        submission("a", 10),
        submission("b", 10, at=5),
    )
    # b starts up until 10 s, when a has made 5 of its 10 s; then they share
    assert finished(result) == pytest.approx({"a": 16.25, "b": 21.25})
    assert started(result) == {"a": 0, "b": 5}


def test_a_start_up_that_uses_the_device_is_slowed_down_and_slows_down() -> None:
    core = world({"a": 0.5, "b": 0.5}, startup_seconds=6, startup_uses_device=True)
    fractions = {(MODEL, "a"): 0.5, (MODEL, "b"): 0.5, (MODEL, STARTING_UP): 1.0}
    result = run(
        replace(core, truth=ProcessorSharing(active_fractions=fractions)),
        submission("a", 10),
        submission("b", 1, at=6),
    )
    # b starts up beside a from 6 to 15 s, in which a makes 6 of its 10 s; then they share
    # until 16.25 s, when b is done and a has 3 s left
    assert finished(result) == pytest.approx({"a": 19.25, "b": 16.25})
    # a beside b starting up is no co-run of kinds; b's ten steps beside a are one
    seen = {(each.profile_key, each.partner_keys) for each in result.learnt.observations}
    assert seen == {("a", ("b",)), ("b", ("a",))}


def test_a_training_is_faster_on_another_model_by_the_ratio_of_step_times() -> None:
    def profile(model: str, step: float) -> Profile:
        return Profile(key="a", device_model=model, step_seconds=step, peak_memory_mib=1000)

    both = {"a": {"K80": profile("K80", 0.4), MODEL: profile(MODEL, 0.1)}}
    mixed = world(
        {},
        devices=[device(0, model="K80"), device(1)],
        profiles=both,
        reference_models=("K80", MODEL),
    )
    result = run(mixed, submission("a", 40), submission("second", 40, kind="a"), policy="serial")
    assert finished(result) == {"a": 40, "second": 10}


def test_what_needs_no_device_runs_beside_full_ones() -> None:
    result = run(
        world(HALF, limits=Limits(max_trainings_per_gpu=1)),
        submission("a", 100),
        submission("b", 5, at=1, gpus=0),
    )
    assert finished(result) == {"a": 100, "b": 6}


class TestOutOfMemory:
    """Pairs that do not fit together, whatever their peaks say."""

    def truth(self) -> MeasuredPairs:
        return MeasuredPairs(
            throughputs={},
            clashes=frozenset({(MODEL, "a", "b")}),
            otherwise=ProcessorSharing(active_fractions={(MODEL, "a"): 0.0, (MODEL, "b"): 0.0}),
        )

    def test_the_newcomer_is_lost_and_does_not_come_back_to_that_partner(self) -> None:
        result = run(
            world({"a": 0.0, "b": 0.0}, truth=self.truth(), startup_seconds=1),
            submission("a", 10),
            submission("b", 10),
        )
        # both start up until 1 s; then b is lost and waits until a is done
        assert finished(result) == {"a": 11, "b": 22}
        assert [(loss.submission.name, loss.ended_at_s) for loss in result.losses] == [("b", 1)]
        assert result.learnt.clashes == {(MODEL, "a", "b")}

    def test_a_pair_known_not_to_fit_is_never_tried(self) -> None:
        result = run(
            world({"a": 0.0, "b": 0.0}, truth=self.truth(), clashes=frozenset({(MODEL, "a", "b")})),
            submission("a", 10),
            submission("b", 10),
        )
        assert result.losses == ()
        assert finished(result) == {"a": 10, "b": 20}

    def test_who_is_too_large_for_the_device_fails_after_three_releases(self) -> None:
        small = world({"a": 0.5}, peak=20000, devices=[device(memory=16000)], profiled=False)
        result = run(small, submission("a", 10))
        assert [loss.submission.name for loss in result.losses] == ["a", "a", "a"]
        assert [each.name for each in result.failed] == ["a"]
        assert result.outcomes == ()

    def test_who_is_known_to_be_too_large_is_refused(self) -> None:
        small = world({"a": 0.5}, peak=20000, devices=[device(memory=16000)])
        result = run(small, submission("a", 10))
        assert [each.code for each in result.refused] == [ReasonCode.NEVER_FITS]
        assert result.losses == ()


class TestWhatIsKnown:
    def test_who_was_never_profiled_is_alone_until_its_profile_has_settled(self) -> None:
        result = run(
            world({"a": 0.5, "b": 0.5}, profiled=False, profiling_steps=20),
            submission("a", 10, kind="a"),
            submission("again", 10, kind="a"),
            submission("b", 10),
        )
        # the profile of a has settled after 20 steps of 0.1 s; b still needs an empty device
        assert started(result)["again"] == pytest.approx(2)
        assert started(result)["b"] == pytest.approx(finished(result)["again"])

    def test_profiles_of_an_earlier_queue_are_remembered_when_asked_for(self) -> None:
        unknown = world({"a": 0.5}, profiled=False)
        first = run(unknown, submission("a", 10))
        second = run(
            unknown, submission("a", 10), submission("again", 10, kind="a"), learnt=first.learnt
        )
        assert started(second) == {"a": 0, "again": 0}

    def test_co_runs_are_observed_once_they_have_made_ten_steps(self) -> None:
        result = run(world({"a": 0.5, "b": 0.5}), submission("a", 10), submission("b", 10))
        assert {
            (each.profile_key, each.partner_keys): each.slowdown
            for each in result.learnt.observations
        } == {("a", ("b",)): 1.25, ("b", ("a",)): 1.25}
        brief = run(world({"a": 0.5, "b": 0.5}), submission("a", 0.9), submission("b", 0.9))
        assert brief.learnt.observations == ()

    def test_an_observation_is_known_to_the_next_decision(self) -> None:
        seen: list[Snapshot] = []
        run(
            world(HALF),
            submission("a", 10),
            submission("b", 10),
            submission("c", 10, at=20),
            watch=lambda snapshot, _: seen.append(snapshot),
        )
        assert [len(snapshot.observations) for snapshot in seen] == [0, 2]

    @pytest.mark.parametrize("known", [True, False])
    def test_remaining_times_are_told_beforehand_or_reported_by_running_trainings(
        self, *, known: bool
    ) -> None:
        seen: list[Snapshot] = []
        run(
            world({"a": 0.5, "b": 0.5}, durations_known=known),
            submission("a", 10),
            submission("b", 10, at=4),
            watch=lambda snapshot, _: seen.append(snapshot),
        )
        last = seen[-1]
        assert [each.remaining_seconds for each in last.held] == ([10] if known else [None])
        (resident,) = last.devices[0].residents
        assert resident.remaining_seconds == pytest.approx(6)


@dataclass(frozen=True)
class Counting:
    """Decides as another policy does, and counts."""

    calls: list[Snapshot]
    name: str = "parallel"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        self.calls.append(snapshot)
        return policy_named(self.name).decide(snapshot)


def test_nothing_is_decided_while_no_slot_is_free() -> None:
    policy = Counting([])
    queue = [submission(str(at), 10, at=at, kind="a") for at in range(5)]
    result = simulate(world({"a": 1.0}), queue, policy)
    # two arrivals find a slot, the others none; then every end but the last two frees one
    assert [snapshot.now_s for snapshot in policy.calls][:2] == [0, 1]
    assert len(policy.calls) == result.decisions == 5


def test_what_is_submitted_at_once_is_decided_at_once() -> None:
    policy = Counting([])
    simulate(
        world({"a": 1.0}, devices=4), [submission(str(n), 5, kind="a") for n in range(6)], policy
    )
    assert len(policy.calls) == 1


def test_a_training_that_becomes_overdue_beside_a_free_slot_is_decided_about() -> None:
    limits = Limits(max_wait_seconds=30)
    policy = Counting([], name="serial")
    simulate(
        world({"a": 1.0}, limits=limits),
        [submission(str(n), 50, kind="a") for n in range(2)],
        policy,
    )
    assert [snapshot.now_s for snapshot in policy.calls] == pytest.approx([0, 30, 50])


@dataclass(frozen=True)
class Holding:
    """Never releases anything."""

    name: str = "holding"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        return tuple(
            Hold(training=each, code=ReasonCode.NO_FREE_SLOT, reason="Not today.")
            for each in snapshot.held
        )


def test_a_policy_that_releases_nothing_is_named_with_its_reason() -> None:
    with pytest.raises(SimulationStalledError, match=r"'holding' releases none of 2.*Not today"):
        simulate(world(HALF), [submission("a", 1), submission("b", 1)], Holding())


def test_decisions_are_timed_by_the_clock_of_the_caller() -> None:
    ticks = iter(range(100))
    result = run(world(HALF), submission("a", 1), clock=lambda: float(next(ticks)))
    assert (result.decisions, result.decision_seconds) == (1, 1.0)
    assert run(world(HALF), submission("a", 1)).decision_seconds is None


def test_every_decision_can_be_watched_with_its_snapshot() -> None:
    seen: dict[float, Mapping[str, type[Decision]]] = {}
    run(
        world(HALF, limits=Limits(max_trainings_per_gpu=1)),
        submission("a", 10),
        submission("b", 10),
        watch=lambda snapshot, decisions: seen.update(
            {snapshot.now_s: {each.training.name: type(each) for each in decisions}}
        ),
    )
    assert seen == {0: {"a": Release, "b": Hold}, 10: {"b": Release}}


def test_profiles_without_figures_still_run() -> None:
    bare = world({}, profiles=profiles({"a": None}, step=None, peak=None))
    assert finished(run(bare, submission("a", 7))) == {"a": 7}
