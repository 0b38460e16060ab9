from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from tests.cli.demo.building import view
from xonar_prefect.cli.demo import live
from xonar_prefect.cli.demo.watching import Stage, TrainingView

_HELD = view(
    "quick-1",
    stage=Stage.HELD,
    state="AwaitingGPU",
    completed=False,
    reason="CPU core 0 has 2 of 2 trainings.",
    released_at_s=None,
    ended_at_s=None,
)
_RUNNING = view(
    "cnn-1",
    stage=Stage.RUNNING,
    state="Running",
    completed=False,
    devices=("cpu-0",),
    partners=("store-1",),
    steps_done=30,
    steps_total=120,
    ended_at_s=None,
)


def _printed(view_: TrainingView) -> str:
    console = Console(width=160, file=StringIO())
    console.print(live.render([view_], "Queue", now_s=1012.0))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_table_shows_why_and_for_how_long_a_training_is_held() -> None:
    text = _printed(_HELD)

    assert "AwaitingGPU" in text
    assert "CPU core 0 has 2 of 2 trainings." in text
    assert "12 s" in text
    assert "1 held, 0 starting, 0 running, 0 ended" in text


def test_table_shows_progress_device_and_partner_of_a_running_training() -> None:
    text = _printed(_RUNNING)

    assert "cpu-0" in text
    assert "store-1" in text
    assert "25%" in text
    assert "10 s" in text


def test_progress_of_a_training_that_does_not_tell_its_length_is_a_count() -> None:
    assert "30 steps" in _printed(_RUNNING.__class__(**{**_fields(_RUNNING), "steps_total": None}))


def _fields(view_: TrainingView) -> dict[str, object]:
    return {name: getattr(view_, name) for name in view_.__dataclass_fields__}


def test_trainings_held_for_one_reason_are_told_together() -> None:
    other = TrainingView(**{**_fields(_HELD), "run_id": "id-2", "name": "quick-2"})
    different = TrainingView(**{**_fields(_HELD), "name": "cnn-9", "reason": "The pool is paused."})

    assert live.reasons([_HELD, different, other]) == [
        "quick-1, quick-2 held: CPU core 0 has 2 of 2 trainings.",
        "cnn-9 held: The pool is paused.",
    ]


def test_reason_of_the_latest_release_is_told() -> None:
    earlier = TrainingView(**{**_fields(_RUNNING), "reason": "It was first."})
    later = TrainingView(
        **{**_fields(_RUNNING), "name": "cnn-2", "released_at_s": 1009.0, "reason": "It fits."}
    )

    assert live.reasons([later, earlier]) == ["cnn-2: It fits."]


def test_table_fits_eighty_columns() -> None:
    long = TrainingView(
        **{**_fields(_RUNNING), "name": "distributed-1", "partners": ("distributed-2",)}
    )
    console = Console(width=80, file=StringIO())

    console.print(live.render([long], "Queue", now_s=1000.0 + 5 * 60 + 11))

    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    odd = TrainingView(**{**_fields(_HELD), "reason": "needs [red]12[/red] MiB"})

    assert "needs [red]12[/red] MiB" in _printed(odd)


def test_lines_are_printed_only_for_changes() -> None:
    printed: dict[str, str] = {}
    further = TrainingView(**{**_fields(_RUNNING), "steps_done": 31})
    alone = TrainingView(**{**_fields(_RUNNING), "partners": ()})

    assert list(live.changes(printed, [_RUNNING])) == ["cnn-1: running on cpu-0, beside store-1"]
    assert list(live.changes(printed, [further])) == []
    assert list(live.changes(printed, [alone])) == ["cnn-1: running on cpu-0, alone"]
    assert list(live.changes(printed, [view("cnn-1")])) == ["cnn-1: Completed, JCT 1 min 00 s"]


def test_training_that_is_not_decided_about_has_no_line() -> None:
    undecided = TrainingView(**{**_fields(_HELD), "reason": None})

    assert list(live.changes({}, [undecided])) == []
    assert list(live.changes({}, [_HELD])) == ["quick-1: held - CPU core 0 has 2 of 2 trainings."]


@pytest.fixture
def clock() -> Iterator[float]:
    return iter([100.0, 107.5])


def test_without_a_terminal_every_change_is_a_line_with_its_time(clock: Iterator[float]) -> None:
    console = Console(width=200, file=StringIO(), force_terminal=False)

    with live.shown(console, "Queue", clock=lambda: next(clock)) as show:
        show((_HELD,))
        show((_HELD,))

    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "   7.5 s  quick-1: held - CPU core 0 has 2 of 2 trainings."
    ]


def test_waiting_is_always_visible() -> None:
    for terminal in (True, False):
        console = Console(width=80, file=StringIO(), force_terminal=terminal)
        with live.waiting(console, "Starting a server ..."):
            pass
        assert "Starting a server ..." in console.file.getvalue()  # type: ignore[attr-defined]
