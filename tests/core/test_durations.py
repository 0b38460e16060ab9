from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.building import MODEL, resident, snapshot, training
from xonar_prefect.core.durations import Durations
from xonar_prefect.core.models import (
    Profile,
    Snapshot,
    Training,
)


def timed(name: str, seconds: float | None = None, **steps: float) -> Training:
    profiles = {
        model: Profile(key=name, device_model=model, step_seconds=step)
        for model, step in steps.items()
    }
    return replace(training(name, remaining_seconds=seconds), profiles=profiles)


def known(*held: Training, **values: object) -> Durations:
    return Durations(replace(snapshot(held, []), **values))  # type: ignore[arg-type]


def test_what_a_training_reports_comes_first() -> None:
    durations = known(durations={("a", MODEL): 70.0})
    running = resident(training("a", remaining_seconds=40.0))
    assert durations.of_resident(running, MODEL) == (40.0, True)


def test_else_earlier_runs_of_its_kind_tell() -> None:
    durations = known(durations={("a", MODEL): 70.0})
    assert durations.held(training("a"), MODEL) == (70.0, True)
    started = replace(resident("a"), started_at_s=70.0)  # it is 100 now
    assert durations.of_resident(started, MODEL) == (40.0, True)


def test_who_runs_longer_than_its_kind_has_a_little_left() -> None:
    durations = known(durations={("a", MODEL): 70.0})
    assert durations.of_resident(resident("a"), MODEL) == (pytest.approx(7.0), True)


def test_else_the_mean_of_the_pool_stands_in_and_is_not_known() -> None:
    durations = known(timed("b", 10.0), timed("c", 30.0))
    assert durations.held(training("a"), MODEL) == (20.0, False)
    assert durations.of_resident(resident("a"), MODEL) == (20.0, False)
    assert not known().held(training("a"), MODEL).known


def test_remaining_time_is_that_on_the_fastest_model_it_has_a_profile_of() -> None:
    durations = known()
    both = timed("a", 100.0, V100=0.2, A100=0.1)
    assert durations.held(both, "A100").seconds == pytest.approx(100.0)
    assert durations.held(both, "V100").seconds == pytest.approx(200.0)
    assert durations.held(timed("a", 100.0, V100=0.2), "V100").seconds == 100.0


def test_a_model_it_was_not_profiled_on_is_as_fast_as_for_the_others() -> None:
    durations = known(timed("x", V100=0.3, A100=0.1), durations={("a", "A100"): 50.0})
    assert durations.held(timed("a", 100.0, A100=0.1), "V100").seconds == pytest.approx(300.0)
    assert durations.held(training("a"), "V100").seconds == pytest.approx(150.0)


def test_without_any_ratio_models_are_alike() -> None:
    durations = Durations(Snapshot(now_s=0.0, held=(), devices=(), durations={("a", "A100"): 50.0}))
    assert durations.held(training("a"), "V100").seconds == 50.0
