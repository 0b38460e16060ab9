from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import xonar_prefect
from xonar_prefect.profiling import marks
from xonar_prefect.profiling.marks import activated, current_session, is_measured, step, steps
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window


def a_session() -> Session:
    return Session(Window(), None)


@pytest.fixture
def session() -> Iterator[Session]:
    session = a_session()
    with activated(session):
        yield session


def test_public_names_are_these() -> None:
    assert xonar_prefect.step is step
    assert xonar_prefect.steps is steps


def test_without_a_session_marks_do_nothing() -> None:
    assert current_session() is None
    with step():
        assert list(steps([1, 2], total=2)) == [1, 2]


def test_every_item_is_a_step_and_the_loop_an_epoch(session: Session) -> None:
    for _ in range(2):
        assert list(steps("abc")) == ["a", "b", "c"]
    assert session.progress.steps_done == 6
    assert session.steps_total is None


def test_total_is_that_of_the_whole_training(session: Session) -> None:
    for _ in range(2):
        list(steps("abc", total=6))
    assert session.steps_total == 6


def test_a_with_statement_is_a_step(session: Session) -> None:
    for _ in range(3):
        with step():
            pass
    session.finish()
    assert session.progress.steps_done == 3


def test_a_step_that_raises_does_not_count_and_the_error_passes(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), step():
        raise ZeroDivisionError
    session.finish()
    assert session.progress.steps_done == 0


def test_a_loop_left_early_keeps_the_steps_that_were_whole(session: Session) -> None:
    for item in steps(range(10)):
        if item == 3:
            break
    session.finish()
    assert session.progress.steps_done == 3


def test_an_error_in_the_data_passes(session: Session) -> None:
    def data() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        list(steps(data()))
    assert session.progress.steps_done == 1


def test_one_session_at_a_time_and_the_others_steps_are_nobodys(session: Session) -> None:
    other = a_session()
    with activated(other) as has_turn:
        assert not has_turn
        list(steps("abc"))
    list(steps("ab"))
    assert other.progress.steps_done == 0
    assert session.progress.steps_done == 2


def test_the_turn_passes_on(session: Session) -> None:
    assert is_measured()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(is_measured).result() is False


def test_the_next_training_gets_the_turn_when_the_first_is_over() -> None:
    first, second = a_session(), a_session()
    with activated(first) as has_turn:
        assert has_turn
    assert first.finished
    with activated(second) as has_turn:
        assert has_turn
        list(steps("a"))
    assert second.progress.steps_done == 1


def test_threads_of_the_training_belong_to_it(session: Session) -> None:
    for run in (copy_context().run, lambda work: work()):
        thread = threading.Thread(target=run, args=(lambda: list(steps("ab")),))
        thread.start()
        thread.join()
    assert session.progress.steps_done == 4


def test_the_turn_is_free_after_an_error() -> None:
    with pytest.raises(ValueError, match="boom"), activated(a_session()):
        raise ValueError("boom")
    assert marks._active is None
