"""Windows of steps: alone, and beside partners that were stepping too."""

from __future__ import annotations

import pytest

from xonar_prefect.core.ledger import CoRun
from xonar_prefect.run_directory import Status
from xonar_prefect.worker.co_runs import (
    LEAST_STEPS,
    CoRunMeter,
    is_stepping,
    measured_slowdown,
    solo_step_seconds,
)


def report(steps: int, seconds: float, phase: str = "training") -> Status:
    return Status(phase=phase, steps_done=steps, stepping_seconds=seconds)


PARTNER = report(5, 1.0)


def test_a_training_is_stepping_between_its_first_and_its_last_step() -> None:
    assert not is_stepping(None)
    assert not is_stepping(report(0, 0.0))
    assert is_stepping(report(1, 0.1, "profiling"))
    assert is_stepping(report(1, 0.1))
    assert not is_stepping(report(9, 0.9, "done"))


def test_two_reports_alone_make_a_window_alone() -> None:
    meter = CoRunMeter()
    meter.observe(report(10, 1.0), {})
    meter.observe(report(30, 3.0), {})
    assert meter.co_runs == (CoRun(steps=20, seconds=2.0),)


def test_steps_before_the_first_report_fall_into_no_window() -> None:
    meter = CoRunMeter()
    meter.observe(report(10, 1.0), {})
    assert meter.co_runs == ()


def test_steps_while_a_partner_comes_or_goes_fall_into_no_window() -> None:
    meter = CoRunMeter()
    meter.observe(report(10, 1.0), {})
    meter.observe(report(20, 3.0), {"b": PARTNER})  # it came somewhere in between
    meter.observe(report(30, 5.0), {"b": PARTNER})
    meter.observe(report(40, 6.0), {})  # it went somewhere in between
    assert meter.co_runs == (CoRun(partners=("b",), steps=10, seconds=2.0),)


def test_steps_beside_a_partner_that_is_not_stepping_fall_into_no_window() -> None:
    meter = CoRunMeter()
    for steps in (10, 20, 30):
        meter.observe(report(steps, steps / 10), {"b": report(0, 0.0, "starting")})
    assert meter.co_runs == ()


def test_windows_with_the_same_partners_add_up() -> None:
    meter = CoRunMeter()
    for steps, partners in ((0, {}), (1, {}), (10, {}), (20, {"b": PARTNER}), (30, {}), (34, {})):
        meter.observe(report(steps, steps * 0.5), partners)
    assert meter.co_runs == (CoRun(steps=13, seconds=6.5),)


def test_a_slow_step_is_counted_in_full_when_it_ends() -> None:
    meter = CoRunMeter()
    meter.observe(report(10, 1.0), {})
    meter.observe(report(10, 1.0), {})
    meter.observe(report(11, 4.0), {})
    assert meter.co_runs == (CoRun(steps=1, seconds=3.0),)


def test_what_is_predicted_stands_beside_what_is_measured() -> None:
    meter = CoRunMeter()
    meter.expect({"c": "key-c", "b": "key-b"}, 1.4)
    meter.observe(report(10, 1.0), {"b": PARTNER, "c": PARTNER})
    meter.observe(report(20, 2.4), {"b": PARTNER, "c": PARTNER})
    (window,) = meter.co_runs
    assert window.partners == ("b", "c")
    assert window.partner_keys == ("key-b", "key-c")
    assert (window.predicted_slowdown, window.step_seconds) == (1.4, pytest.approx(0.14))


def test_the_windows_of_an_earlier_life_of_the_worker_are_continued() -> None:
    meter = CoRunMeter((CoRun(steps=20, seconds=2.0),))
    meter.observe(report(30, 3.0), {})
    meter.observe(report(40, 4.0), {})
    assert meter.co_runs == (CoRun(steps=30, seconds=3.0),)


def test_the_solo_step_time_needs_enough_steps_alone() -> None:
    beside = CoRun(partners=("b",), steps=50, seconds=10.0)
    few = CoRun(steps=LEAST_STEPS - 1, seconds=1.0)
    enough = CoRun(steps=LEAST_STEPS, seconds=1.0)
    assert solo_step_seconds((beside, few)) is None
    assert solo_step_seconds((beside, enough)) == (0.1, LEAST_STEPS)


def test_a_slowdown_is_measured_only_against_a_measured_solo_step() -> None:
    window = CoRun(partners=("b",), steps=LEAST_STEPS, seconds=1.5)
    assert measured_slowdown(window, 0.1) == pytest.approx(1.5)
    assert measured_slowdown(window, None) is None


def test_no_slowdown_is_measured_alone_or_in_too_few_steps() -> None:
    assert measured_slowdown(CoRun(steps=50, seconds=5.0), 0.1) is None
    few = CoRun(partners=("b",), steps=LEAST_STEPS - 1, seconds=1.5)
    assert measured_slowdown(few, 0.1) is None
