"""Which devices are at fault when trainings fail, and which trainings are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.quarantine import (
    Attempt,
    FailFastRule,
    Quarantine,
    QuarantineCause,
    fails_fast,
    pause_seconds,
    unavailable_because,
)
from xonar_prefect.errors import InvalidValueError

RULE = FailFastRule(failures=3, window_seconds=600.0)


def failures(device: str, *kinds: str, start_s: float = 0.0) -> list[Attempt]:
    return [attempt(device, kind, start_s + number) for number, kind in enumerate(kinds)]


def attempt(device: str, kind: str, at_s: float, *, worked: bool = False) -> Attempt:
    return Attempt(
        device=device,
        run_id=f"{device} {kind} {at_s}",
        kind=kind,
        ended_at_s=at_s,
        worked=worked,
    )


def blamed(attempts: list[Attempt], device: str = "GPU-1", now_s: float = 100.0) -> int:
    return len(fails_fast(attempts, device, RULE, now_s=now_s))


# microsoft/pai#4314, MFlowCode/MFC PR#1748: a broken GPU is idle, so it attracts the queue.


def test_a_device_that_ends_one_training_after_the_other_is_at_fault() -> None:
    assert blamed(failures("GPU-1", "a", "b")) == 0
    assert blamed(failures("GPU-1", "a", "b", "c")) == 3


def test_trainings_of_one_kind_suffice_where_they_were_tried_nowhere_else() -> None:
    assert blamed(failures("GPU-1", "a", "a", "a")) == 3


def test_one_training_that_is_tried_again_and_again_counts_once() -> None:
    tried = [replace(each, run_id="one") for each in failures("GPU-1", "a", "a", "a", "a")]
    assert blamed(tried) == 0


def test_a_training_that_worked_clears_the_device() -> None:
    attempts = failures("GPU-1", "a", "b")
    attempts += [attempt("GPU-1", "c", 10.0, worked=True), *failures("GPU-1", "d", start_s=20.0)]
    assert blamed(attempts) == 0


def test_old_failures_do_not_count() -> None:
    attempts = failures("GPU-1", "a", "b", "c")
    assert blamed(attempts, now_s=602.0) == 0


def test_failures_elsewhere_do_not_count() -> None:
    assert blamed(failures("GPU-2", "a", "b", "c")) == 0


def test_a_kind_that_fails_on_several_devices_is_at_fault_itself() -> None:
    # One person's broken script, submitted forty times, must not close every device.
    attempts = failures("GPU-1", *"aaaa") + failures("GPU-2", *"aaaa")
    assert blamed(attempts, "GPU-1") == blamed(attempts, "GPU-2") == 0


def test_a_kind_that_works_elsewhere_speaks_against_the_device() -> None:
    attempts = [*failures("GPU-1", *"aaa"), attempt("GPU-2", "a", 50.0, worked=True)]
    attempts += failures("GPU-2", "a")
    assert blamed(attempts, "GPU-1") == 3
    assert blamed(attempts, "GPU-2") == 0


def test_a_kind_that_fails_between_others_that_work_is_at_fault_itself() -> None:
    attempts = failures("GPU-1", "bad", start_s=1.0)
    attempts += [attempt("GPU-1", "good", 2.0, worked=True)]
    attempts += failures("GPU-1", "bad", "bad", "bad", start_s=3.0)
    assert blamed(attempts) == 0


def test_on_probation_one_failure_suffices() -> None:
    once = failures("GPU-1", "a")
    assert len(fails_fast(once, "GPU-1", RULE, now_s=1.0, on_probation=True)) == 1
    assert fails_fast([], "GPU-1", RULE, now_s=1.0, on_probation=True) == ()


def test_the_rule_can_be_switched_off() -> None:
    rule = FailFastRule(failures=0)
    attempts = failures("GPU-1", "a", "b", "c")
    assert fails_fast(attempts, "GPU-1", rule, now_s=3.0, on_probation=True) == ()
    with pytest.raises(InvalidValueError, match="failures"):
        FailFastRule(failures=-1)


attempts = st.lists(
    st.builds(
        Attempt,
        device=st.sampled_from(["GPU-1", "GPU-2"]),
        run_id=st.text("rst", min_size=1, max_size=3),
        kind=st.sampled_from("abc"),
        ended_at_s=st.floats(0, 900),
        worked=st.booleans(),
    ),
    max_size=20,
)


@given(attempts=attempts, now_s=st.floats(0, 1000))
def test_whatever_happens_a_device_is_blamed_only_by_enough_recent_failures_in_a_row(
    attempts: list[Attempt], now_s: float
) -> None:
    against = fails_fast(attempts, "GPU-1", RULE, now_s=now_s)
    assert against == fails_fast(attempts[::-1], "GPU-1", RULE, now_s=now_s)
    assert len({each.run_id for each in against}) == len(against)
    assert not against or len(against) >= RULE.failures
    last_worked = [e.ended_at_s for e in attempts if e.device == "GPU-1" and e.worked]
    for each in against:
        assert not each.worked
        assert now_s - each.ended_at_s <= RULE.window_seconds
        recent = [at_s for at_s in last_worked if now_s - at_s <= RULE.window_seconds]
        assert all(each.ended_at_s > at_s for at_s in recent)


def test_pauses_grow_up_to_the_longest() -> None:
    rule = FailFastRule(pause_seconds=60.0, longest_pause_seconds=200.0)
    assert [pause_seconds(earlier, rule) for earlier in (0, 1, 2, 1000)] == [60, 120, 200, 200]


def test_what_a_person_said_stands_before_what_was_noticed() -> None:
    plain = Quarantine(
        host="box",
        device="GPU-1",
        cause=QuarantineCause.DEVICE,
        reason="lost",
        begun_at_s=1.0,
    )
    by_hand = replace(
        plain, cause=QuarantineCause.BY_HAND, reason="drained", begun_at_s=2.0, until_s=60.0
    )
    assert unavailable_because([plain, by_hand]) == "drained (until 1970-01-01 00:01 UTC); lost"
    assert unavailable_because([]) is None
