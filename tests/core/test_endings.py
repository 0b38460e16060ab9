"""What follows from an ending: bounded, charged to whom it belongs, and said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.endings import (
    INFRASTRUCTURE,
    MOST_FAILED_LAUNCHES,
    MOST_RELEASES_BESIDE_OFFENDERS,
    MOST_RELEASES_OUT_OF_MEMORY,
    Cause,
    Ending,
    Tally,
    is_last_try,
    judge,
    may_run_out_of_memory_again,
)


def ended(cause: Cause, **more: bool) -> Ending:
    return Ending(cause=cause, sentence="It ended.", **more)


OWN = ended(Cause.GPU_OUT_OF_MEMORY)
ROBBED = ended(Cause.GPU_OUT_OF_MEMORY, own_fault=False)


def test_what_ended_by_itself_has_ended() -> None:
    verdict = judge(ended(Cause.ITSELF), Tally(), max_requeues=5)
    assert not verdict.again
    assert verdict.sentence == "It ended."
    assert verdict.tally == Tally()


@pytest.mark.parametrize("cause", sorted(INFRASTRUCTURE))
def test_what_the_host_killed_is_started_again_as_often_as_allowed(cause: Cause) -> None:
    first = judge(ended(cause), Tally(), max_requeues=2)
    assert first.again
    assert first.sentence == "Requeued (restart 1 of 2): It ended."
    second = judge(ended(cause), first.tally, max_requeues=2)
    assert second.again
    assert second.pause_seconds > first.pause_seconds > 0
    third = judge(ended(cause), second.tally, max_requeues=2)
    assert not third.again
    assert third.sentence == "It ended. It was requeued 2 times before."


def test_what_must_not_be_begun_twice_is_not() -> None:
    verdict = judge(ended(Cause.HOST_REBOOTED), Tally(), max_requeues=0)
    assert not verdict.again
    assert verdict.sentence == "It ended."


def test_out_of_memory_three_releases_and_the_last_is_alone() -> None:
    first = judge(OWN, Tally(), max_requeues=0)
    assert (first.again, first.alone) == (True, False)
    assert first.sentence == "Requeued, with more memory (release 2 of 3): It ended."
    second = judge(OWN, first.tally, max_requeues=0)
    assert (second.again, second.alone) == (True, True)
    assert second.sentence == "Requeued, alone (release 3 of 3): It ended."
    assert is_last_try(second.tally)
    third = judge(OWN, second.tally, max_requeues=0)
    assert not third.again
    assert "3 times" in third.sentence


def test_what_had_the_whole_device_gets_one_more_try_and_no_third() -> None:
    # The first may have come too early: memory of the one before was on its way back.
    everything = replace(OWN, had_everything=True)
    first = judge(everything, Tally(), max_requeues=0)
    assert first.again
    assert not judge(everything, first.tally, max_requeues=0).again


def test_what_asked_for_memory_without_end_is_alone_next_time() -> None:
    assert judge(replace(OWN, never_ended=True), Tally(), max_requeues=0).alone


def test_what_others_took_is_not_charged() -> None:
    verdict = judge(ROBBED, Tally(), max_requeues=0)
    assert verdict.again
    assert verdict.tally.out_of_memory == 0
    assert "not counted against it" in verdict.sentence


def test_a_training_stopped_with_its_worker_goes_back_at_once_and_uncounted() -> None:
    verdict = judge(ended(Cause.WORKER_STOPPED), Tally(requeues=9), max_requeues=0)
    assert verdict.again
    assert verdict.pause_seconds == 0
    assert verdict.tally == Tally(requeues=9)


@given(
    causes=st.lists(
        st.sampled_from(
            [OWN, ROBBED, ended(Cause.NOT_LAUNCHED), *(ended(c) for c in sorted(INFRASTRUCTURE))]
        ),
        min_size=40,
        max_size=60,
    ),
    max_requeues=st.integers(0, 4),
)
def test_no_series_of_endings_goes_on_for_ever(causes: list[Ending], max_requeues: int) -> None:
    tally, releases = Tally(), 1
    for ending in causes:
        assert may_run_out_of_memory_again(tally) or tally.out_of_memory == 2
        verdict = judge(ending, tally, max_requeues)
        if not verdict.again:
            break
        tally = verdict.tally
        releases += 1
    most = (
        1
        + max_requeues
        + (MOST_RELEASES_OUT_OF_MEMORY - 1)
        + MOST_RELEASES_BESIDE_OFFENDERS
        + (MOST_FAILED_LAUNCHES - 1)
    )
    assert releases <= most
