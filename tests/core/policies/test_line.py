"""The line: who waits for a device model, in order, as far as somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.building import MODEL, device, snapshot, training
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning import Board
from xonar_prefect.core.policies.adaptive.line import Line


def line_of(held: Iterable[Training]) -> tuple[Board, Line]:
    usual = {("b", MODEL): 40.0}
    now = replace(snapshot(held, [device()]), durations=usual)
    board = Board(now, slots=2)
    return board, Line(board, MODEL, lambda each: 2.0 if each.owner else 1.0)


waiting = st.builds(
    dict,
    key=st.sampled_from("abc"),
    priority=st.integers(1, 2),
    gpus=st.integers(1, 2),
    owner=st.none() | st.just("eve"),
    remaining_seconds=st.none() | st.sampled_from([0.0, 10.0, 70.0]),
)


@given(drawn=st.lists(waiting, max_size=12))
def test_all_are_in_line_by_priority_and_device_time_over_weight(
    drawn: list[dict[str, object]],
) -> None:
    board, line = line_of(training(f"t{n}", n, **values) for n, values in enumerate(drawn))  # type: ignore[arg-type]
    come = list(line)
    assert {each.training.run_id for each in come} == {each.run_id for each in board.held}
    assert come == sorted(come)
    assert line.count == len(drawn)
    assert line.weight == sum(2.0 if values["owner"] else 1.0 for values in drawn)
    for each in come:
        assert each.seconds == board.durations.held(each.training, MODEL).seconds
        assert each.rank == pytest.approx(each.seconds * each.training.gpus / each.weight)
    assert list(line) == come


def test_who_does_not_know_its_length_stands_where_its_kind_usually_does() -> None:
    lengths = (("short", 10.0), ("unknown", None), ("long", 70.0))
    _, line = line_of(
        training(name, n, key="b", remaining_seconds=seconds)
        for n, (name, seconds) in enumerate(lengths)
    )
    assert [each.training.name for each in line] == ["short", "unknown", "long"]


def test_among_equals_the_line_is_the_queue_whatever_their_kinds() -> None:
    held = [training(name, n, key=name[0]) for n, name in enumerate(["a1", "b1", "c1", "a2", "b2"])]
    _, line = line_of(replace(each, remaining_seconds=9.0) for each in held)
    assert [each.training.name for each in line] == ["a1", "b1", "c1", "a2", "b2"]


def test_whoever_is_taken_meanwhile_is_left_out() -> None:
    held = [training(name, n, key="k", remaining_seconds=n) for n, name in enumerate("abcd")]
    board, line = line_of(held)
    kind = board.queue.kind_of(held[0])
    coming = iter(line)
    assert next(coming).training is held[0]
    board.queue.take(kind, held[1])
    assert [each.training for each in coming] == held[2:]
    board.queue.take(kind, held[0])
    assert [each.training for each in line] == held[2:]
