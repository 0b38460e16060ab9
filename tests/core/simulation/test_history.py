from __future__ import annotations

from typing import Any

import pytest

from tests.core.building import MODEL
from tests.core.simulation.worlds import profiles, run, submission, world
from xonar_prefect.core.ledger import CoRun
from xonar_prefect.core.models import Profile
from xonar_prefect.core.simulation.history import (
    RecordedRun,
    slowdowns_of,
    submissions_of,
    with_startup,
)

KNOWN = profiles({"a": 0.5, "b": 0.5}, step=0.1)


def recorded(name: str = "a", **values: Any) -> RecordedRun:
    return RecordedRun(
        **{
            "name": name,
            "kind": name,
            "device_model": MODEL,
            "gpus": 1,
            "submitted_at_s": 1000.0,
            "released_at_s": 1010.0,
            "ended_at_s": 1040.0,
            **values,
        }
    )


def test_what_a_run_did_besides_its_steps_was_its_start_up() -> None:
    # 100 steps in 25 s beside a partner; alone they would have taken 10 s
    (again,), usual = submissions_of([recorded(steps=100, stepping_seconds=25.0)], KNOWN)
    assert again.solo_seconds == pytest.approx(10)
    assert again.startup_seconds == pytest.approx(5)
    assert usual == pytest.approx(5)


def test_windows_stand_in_for_a_report_that_is_gone() -> None:
    windows = (CoRun(partners=("r",), partner_keys=("b",), steps=100, seconds=20.0),)
    (again,), usual = submissions_of([recorded(co_runs=windows)], KNOWN)
    assert again.solo_seconds == pytest.approx(10)
    assert usual == pytest.approx(10)


def test_a_run_that_measured_itself_alone_counts_by_its_own_step_time() -> None:
    alone = CoRun(steps=50, seconds=10.0)
    (again,), _ = submissions_of(
        [recorded(steps=100, stepping_seconds=25.0, co_runs=(alone,))], KNOWN
    )
    assert again.solo_seconds == pytest.approx(20)


def test_without_any_record_of_steps_the_usual_start_up_is_taken_off() -> None:
    known = recorded(steps=100, stepping_seconds=25.0)
    (_, again), _ = submissions_of([known, recorded("b", submitted_at_s=1001.0)], KNOWN)
    assert (again.startup_seconds, again.solo_seconds) == pytest.approx((5, 25))


def test_the_queue_begins_at_second_zero_in_order_of_submission() -> None:
    later, sooner = recorded("a", submitted_at_s=1005.0), recorded("b", submitted_at_s=1002.0)
    again, _ = submissions_of([later, sooner], KNOWN)
    assert [(each.name, each.submitted_at_s) for each in again] == [("b", 0.0), ("a", 3.0)]


def test_a_start_up_time_may_be_given_instead() -> None:
    again, _ = submissions_of([recorded(steps=100, stepping_seconds=25.0)], KNOWN)
    assert [each.startup_seconds for each in with_startup(again, 2.0)] == [2.0]
    assert with_startup(again, None) == tuple(again)


def test_measured_co_runs_become_the_truth_of_the_replay() -> None:
    def beside_b(steps: int, seconds: float) -> RecordedRun:
        window = CoRun(partners=("r",), partner_keys=("b",), steps=steps, seconds=seconds)
        return recorded(co_runs=(window,))

    found = slowdowns_of([beside_b(30, 6.0), beside_b(10, 2.0)], KNOWN, least_steps=20)
    assert found == {(MODEL, "a", "b"): pytest.approx(0.5)}
    assert slowdowns_of([beside_b(10, 2.0)], KNOWN, least_steps=20) == {}


def test_nobody_is_measured_against_an_unknown_step_time() -> None:
    window = CoRun(partners=("r",), partner_keys=("b",), steps=30, seconds=6.0)
    unknown = {"a": {MODEL: Profile(key="a", device_model=MODEL)}}
    assert slowdowns_of([recorded(co_runs=(window,))], unknown, least_steps=20) == {}


def test_a_simulated_queue_that_is_recorded_and_replayed_ends_as_it_did() -> None:
    where = world({"a": 0.5, "b": 0.8}, startup_seconds=7)
    queue = [submission("a", 40), submission("b", 90, at=3), submission("last", 30, at=5, kind="a")]
    first = run(where, *queue)
    records = [
        recorded(
            each.submission.name,
            kind=each.submission.kind,
            submitted_at_s=each.submission.submitted_at_s,
            released_at_s=each.started_at_s,
            ended_at_s=each.finished_at_s,
            steps=round(each.submission.solo_seconds / 0.1),
            stepping_seconds=each.finished_at_s - each.started_at_s - 7,
        )
        for each in first.outcomes
    ]
    again, usual = submissions_of(records, where.profiles)
    replay = run(where, *again)
    assert usual == pytest.approx(7)
    assert replay.service.average_jct_s == pytest.approx(first.service.average_jct_s)
    assert replay.service.makespan_s == pytest.approx(first.service.makespan_s)
