from __future__ import annotations

from dataclasses import replace

import pytest

from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.worker.durations import duration_alone

DONE = LedgerEntry(
    run_id="r",
    name="r",
    worker="w",
    state=SlotState.DRAINING,
    run_directory="/nowhere",
    reserved_at_s=90.0,
    launched_at_s=100.0,
    ended_at_s=200.0,
    exit_code=0,
)


def test_alone_it_is_the_time_from_launch_to_end() -> None:
    assert duration_alone(DONE, None) == 100.0
    assert duration_alone(replace(DONE, co_runs=(CoRun(steps=10, seconds=60.0),)), 1.0) == 100.0


def test_what_partners_cost_is_taken_off() -> None:
    window = CoRun(partners=("x",), steps=20, seconds=60.0, predicted_slowdown=1.5)
    shared = replace(DONE, co_runs=(window,))
    assert duration_alone(shared, 2.0) == pytest.approx(80.0)
    assert duration_alone(shared, None) == pytest.approx(80.0)
    unknown = replace(DONE, co_runs=(replace(window, predicted_slowdown=None),))
    assert duration_alone(unknown, None) == pytest.approx(100.0)


@pytest.mark.parametrize("changes", [{"exit_code": 1}, {"exit_code": None}, {"ended_at_s": None}])
def test_who_did_not_end_well_says_nothing(changes: dict[str, object]) -> None:
    assert duration_alone(replace(DONE, **changes), None) is None  # type: ignore[arg-type]
