from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.building import device, resident, snapshot, training
from tests.core.simulation.worlds import run, submission, world
from xonar_prefect.core.decisions import ReasonCode, Release
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.core.simulation import Outcome, Submission
from xonar_prefect.core.simulation.overtaking import OvertakingWatch, waited_beyond_bound


def watched(held: Sequence[Training], released: Training, *there: object) -> int:
    """Return what is counted when one of the held is released to GPU 0, a minute is the bound."""
    watch = OvertakingWatch()
    watch(
        snapshot(held, [device(0, *there)], now=100.0, max_wait_seconds=60.0),
        (
            Release(
                training=released, devices=("GPU-0",), code=ReasonCode.FIRST_ON_DEVICE, reason=""
            ),
        ),
    )
    return watch.count


def test_a_release_to_a_place_that_an_overdue_older_training_could_have_had_counts() -> None:
    older, later = training("older", 0.0, peak=1000), training("later", 90.0, peak=1000)
    assert watched([older, later], later) == 1
    assert watched([older, later], older) == 0


def test_who_may_still_start_elsewhere_is_not_overtaken() -> None:
    older, later = training("older", 0.0, peak=1000), training("later", 90.0, peak=1000)
    watch = OvertakingWatch()
    release = Release(
        training=later, devices=("GPU-0",), code=ReasonCode.FIRST_ON_DEVICE, reason=""
    )
    free = [device(0), device(1)]
    watch(snapshot([older, later], free, now=100.0, max_wait_seconds=60.0), (release,))
    assert watch.count == 0


def test_who_is_not_overdue_yet_is_not_overtaken() -> None:
    older, later = training("older", 50.0, peak=1000), training("later", 90.0, peak=1000)
    assert watched([older, later], later) == 0


def test_who_could_not_have_gone_there_is_not_overtaken() -> None:
    older, later = training("older", 0.0, peak=15000), training("later", 90.0, peak=1000)
    assert watched([older, later], later, resident("there", 4000)) == 0


def test_a_policy_that_serves_in_order_overtakes_nobody() -> None:
    watch = OvertakingWatch()
    queue = [submission(str(n), 50, at=n, kind="a") for n in range(8)]
    limits = Limits(max_wait_seconds=10)
    run(world({"a": 0.5}, devices=2, limits=limits), *queue, watch=watch)
    assert watch.count == 0


submissions = st.builds(
    submission,
    name=st.just("any"),
    seconds=st.integers(1, 300),
    at=st.integers(0, 100),
    kind=st.sampled_from("abc"),
    gpus=st.sampled_from([1, 1, 2]),
)


@pytest.mark.parametrize("policy", ["adaptive", "complementary", "parallel"])
@settings(max_examples=60)
@given(queue=st.lists(submissions, min_size=3, max_size=12), known=st.booleans())
def test_nobody_is_overtaken_in_a_pool_that_knows_no_profile(
    policy: str, queue: list[Submission], known: bool
) -> None:
    watch = OvertakingWatch()
    limits = Limits(max_wait_seconds=50)
    fresh = world(
        {"a": 0.3, "b": 0.6, "c": 0.9},
        devices=2,
        limits=limits,
        profiled=False,
        durations_known=known,
    )
    run(fresh, *queue, policy=policy, watch=watch)
    assert watch.count == 0


def outcome(name: str, submitted: float, started: float, finished: float, *devices: str) -> Outcome:
    return Outcome(
        submission=submission(name, 1, at=submitted),
        devices=devices,
        started_at_s=started,
        finished_at_s=finished,
    )


def test_who_could_only_have_gone_there_before_an_older_one_went_is_not_overtaken() -> None:
    oldest, older = training("oldest", 0.0, gpus=1), training("older", 1.0, gpus=2)
    later = training("later", 90.0)
    watch = OvertakingWatch()
    watch(
        snapshot([oldest, older, later], [device(0), device(1)], now=100.0, max_wait_seconds=60.0),
        tuple(
            Release(training=each, devices=where, code=ReasonCode.FIRST_ON_DEVICE, reason="")
            for each, where in ((oldest, ("GPU-0",)), (later, ("GPU-1",)))
        ),
    )
    assert watch.count == 0


def test_a_gang_that_waits_until_what_ran_has_drained_is_within_its_bound() -> None:
    gang = outcome("gang", 0, 100, 200, "GPU-0", "GPU-1")
    ran = outcome("ran", 1, 20, 100, "GPU-1")
    assert waited_beyond_bound([gang, ran], max_wait_seconds=30) == 0


def test_a_gang_kept_by_a_later_training_that_came_when_it_was_overdue_waited_too_long() -> None:
    gang = outcome("gang", 0, 100, 200, "GPU-0", "GPU-1")
    ran = outcome("ran", 1, 20, 60, "GPU-1")
    later = outcome("later", 2, 60, 100, "GPU-1")
    assert waited_beyond_bound([gang, ran, later], max_wait_seconds=30) == 1
