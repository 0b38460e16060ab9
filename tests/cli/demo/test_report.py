from __future__ import annotations

import json

import pytest
from rich.console import Console

from tests.cli.demo.building import beside, profile, view
from xonar_prefect.cli.demo.report import result_of, sentences_about, table_of
from xonar_prefect.cli.demo.watching import Stage

# Others compute with these names: they are never renamed.
_FIELDS = {
    "name",
    "active_fraction",
    "active_fraction_interval",
    "peak_memory_mib",
    "partner",
    "predicted_slowdown",
    "measured_slowdown",
    "jct_s",
    "held_s",
    "held_reason",
    "state",
}


def _text(*views, known=None) -> str:  # type: ignore[no-untyped-def]
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(table_of(result_of(views, known or {}), "Result"))
    return captured.get()


def test_slowdown_is_step_time_beside_the_partner_over_step_time_alone() -> None:
    alone = beside(steps=50, step_seconds=0.05)
    shared = beside("store-1", step_seconds=0.07, predicted_slowdown=1.33)
    views = [view("cnn-1", co_runs=(alone, shared)), view("store-1")]

    training = result_of(views, {}).trainings[0]

    assert training.partner == "store-1"
    assert training.predicted_slowdown == 1.33
    assert training.measured_slowdown == pytest.approx(1.4)


def test_training_that_never_ran_alone_is_compared_with_its_kind() -> None:
    shared = beside("store-1", step_seconds=0.06)
    known = profile("cnn", step_seconds=0.04, steps=100, active_fraction=0.9, peak_memory_mib=700)

    training = result_of([view("cnn-2", co_runs=(shared,))], known).trainings[0]

    assert training.measured_slowdown == pytest.approx(1.5)
    assert (training.active_fraction, training.peak_memory_mib) == (0.9, 700)


def test_training_that_ran_alone_is_predicted_and_measured_against_its_kind() -> None:
    known = profile("cnn", step_seconds=0.04, steps=100)
    alone = beside(steps=50, step_seconds=0.042)

    training = result_of([view("cnn-2", co_runs=(alone,))], known).trainings[0]

    assert training.partner is None
    assert training.predicted_slowdown == 1.0
    assert training.measured_slowdown == pytest.approx(1.05)


def test_step_time_alone_that_rests_on_more_steps_counts() -> None:
    windows = (beside(steps=20, step_seconds=0.10), beside("store-1", step_seconds=0.12))
    known = profile("cnn", step_seconds=0.08, steps=30)

    training = result_of([view("cnn-1", co_runs=windows)], known).trainings[0]

    assert training.measured_slowdown == pytest.approx(1.5)


@pytest.mark.parametrize("known", [{}, profile("cnn", joint=True, steps=40)])
def test_without_a_measured_step_time_alone_no_slowdown_is_invented(known) -> None:  # type: ignore[no-untyped-def]
    shared = beside("store-1", step_seconds=0.12, predicted_slowdown=1.2)

    training = result_of([view("cnn-1", co_runs=(shared,))], known).trainings[0]

    assert training.measured_slowdown is None
    assert training.predicted_slowdown == 1.2


def test_a_few_steps_beside_a_partner_are_no_measurement() -> None:
    windows = (beside(steps=50, step_seconds=0.1), beside("store-1", steps=3, step_seconds=0.2))

    training = result_of([view("cnn-1", co_runs=windows)], {}).trainings[0]

    assert training.partner == "id-store"[:8]
    assert training.measured_slowdown is None


def test_partner_is_the_one_of_most_steps() -> None:
    windows = (
        beside("store-1", steps=20, step_seconds=0.1, predicted_slowdown=1.1),
        beside("quick-1", steps=90, step_seconds=0.1, predicted_slowdown=1.4),
    )
    views = [view("cnn-1", co_runs=windows), view("store-1"), view("quick-1")]

    training = result_of(views, {}).trainings[0]

    assert (training.partner, training.predicted_slowdown) == ("quick-1", 1.4)


def test_times_count_from_the_submission() -> None:
    views = [
        view("cnn-1", submitted_at_s=100.0, released_at_s=105.0, ended_at_s=140.0),
        view("cnn-2", submitted_at_s=101.0, released_at_s=131.0, ended_at_s=161.0),
    ]

    result = result_of(views, {})

    assert [training.held_s for training in result.trainings] == [5.0, 30.0]
    assert [training.jct_s for training in result.trainings] == [40.0, 60.0]
    assert result.average_jct_s == 50.0
    assert result.makespan_s == 61.0


def test_a_failed_training_does_not_flatter_the_average() -> None:
    failed = view("cnn-2", state="Crashed", completed=False, ended_at_s=1003.0)

    result = result_of([view("cnn-1"), failed], {})

    assert result.average_jct_s is None
    assert result.trainings[1].jct_s is None
    assert "1 of 2 trainings have completed" in sentences_about(result)[0]


def test_training_without_an_end_has_no_times() -> None:
    waiting = view(
        "cnn-2",
        stage=Stage.HELD,
        state="Late",
        completed=False,
        released_at_s=None,
        ended_at_s=None,
    )

    result = result_of([view("cnn-1"), waiting], {})

    assert (result.trainings[1].jct_s, result.trainings[1].held_s) == (None, None)
    assert result.makespan_s is None


def test_json_has_the_promised_shape_and_null_for_the_unknown() -> None:
    data = json.loads(json.dumps(result_of([view("cnn-1")], {}).to_json()))

    assert set(data) == {"trainings", "average_jct_s", "makespan_s"}
    assert set(data["trainings"][0]) == _FIELDS
    assert data["trainings"][0]["measured_slowdown"] is None


def test_table_fits_eighty_columns_and_shows_the_unknown_as_a_dash() -> None:
    shared = beside("distributed-2", step_seconds=0.1)
    views = [view("distributed-1", co_runs=(shared,)), view("distributed-2")]

    lines = _text(*views).splitlines()

    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    row = next(line for line in lines if line.strip().startswith("distributed-1"))
    assert row.split() == [
        "distributed-1",
        "-",
        "-",
        "distributed-2",
        "-",
        "-",
        "2",
        "s",
        "60",
        "s",
    ]


def test_an_uncertain_active_fraction_is_marked_and_the_mark_is_explained() -> None:
    known = profile("kind", active_fraction=0.5, active_fraction_interval=(0.3, 0.9))
    views = [view("cnn-1", profile_key="kind"), view("cnn-2")]
    assert "~50%" in _text(*views, known=known)
    assert any("'~' marks" in each for each in sentences_about(result_of(views, known)))
    assert not any("'~' marks" in each for each in sentences_about(result_of(views, {})))


def test_training_that_did_not_complete_shows_its_state_in_place_of_a_jct() -> None:
    lines = _text(view("cnn-1"), view("cnn-2", state="Crashed", completed=False)).splitlines()

    ends = [line.split()[-1] for line in lines if line.strip().startswith("cnn")]
    assert ends == ["s", "Crashed"]


def test_reasons_of_the_longest_held_trainings_are_told() -> None:
    views = [
        view(f"cnn-{number}", released_at_s=1000.0 + number, held_reason=f"reason {number}.")
        for number in range(1, 6)
    ]

    told = [line for line in sentences_about(result_of(views, {})) if "was held" in line]

    assert told == [
        "cnn-5 was held 5 s, last because: reason 5.",
        "cnn-4 was held 4 s, last because: reason 4.",
        "cnn-3 was held 3 s, last because: reason 3.",
    ]
