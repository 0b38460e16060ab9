from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from xonar_prefect.profiling.change import ChangeWatch
from xonar_prefect.profiling.contention import Account
from xonar_prefect.profiling.recording import Mark
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window

SHORT = Window(warm_up=0, minimum=2, maximum=4)


class Clock:
    """A clock that only goes on when it is told to; active time goes on beside it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.active = 7.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.active += seconds

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> float:
        return self.now

    def read_active(self) -> float:
        return self.active


@pytest.fixture
def clock() -> Clock:
    return Clock()


def session_of(clock: Clock, window: Window = SHORT) -> Session:
    return Session(window, clock.read_active, clock=clock.read)


def take_step(
    session: Session, clock: Clock, seconds: float = 1.0, *, explicit: bool = False
) -> None:
    session.begin_step(explicit=explicit)
    clock.work(seconds)
    session.end_step(explicit=explicit)


def test_waiting_for_input_belongs_to_the_step(clock: Clock) -> None:
    session = session_of(clock)
    for _ in range(3):
        take_step(session, clock, 1.0)
        clock.wait(3.0)
    assert session.progress.steps_done == 2
    assert session.progress.stepping_seconds == pytest.approx(8.0)
    assert session.estimate is not None
    assert session.estimate.active_fraction == pytest.approx(0.25)


def test_before_a_gap_a_step_lasts_to_its_own_end(clock: Clock) -> None:
    session = session_of(clock)
    take_step(session, clock, 1.0)
    clock.wait(50.0)
    session.pause()
    clock.work(50.0)
    take_step(session, clock, 1.0)
    session.finish()
    assert session.progress.steps_done == 2
    assert session.progress.stepping_seconds == pytest.approx(2.0)
    assert session.estimate is not None
    assert session.estimate.step_seconds == pytest.approx(1.0)


def test_profile_and_progress_measure_the_same_step_time(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=0, minimum=3, maximum=3))
    for _ in range(2):
        for _ in range(5):
            take_step(session, clock, 1.0)
            clock.wait(1.0)
        session.pause()
        clock.work(30.0)
    before = session.progress
    assert session.estimate is not None
    assert session.estimate.steps == 3
    # The last step of an epoch has no wait after it that could be told from the gap.
    assert before.steps_done == 10
    assert before.stepping_seconds == pytest.approx(18.0)
    assert session.estimate.step_seconds == pytest.approx(2.0)


def test_a_report_never_has_steps_without_their_time(clock: Clock) -> None:
    session = session_of(clock)
    for _ in range(4):
        session.begin_step()
        progress = session.progress
        assert progress.stepping_seconds == pytest.approx(progress.steps_done * 1.0)
        clock.work(1.0)
        session.end_step()
        progress = session.progress
        assert progress.stepping_seconds == pytest.approx(progress.steps_done * 1.0)


def test_warm_up_steps_do_not_count_in_the_estimate_but_as_steps(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=2, minimum=2, maximum=4))
    for seconds in (30.0, 20.0, 1.0, 1.0):
        take_step(session, clock, seconds)
    session.finish()
    assert session.progress.steps_done == 4
    assert session.estimate is not None
    assert (session.estimate.steps, session.estimate.step_seconds) == (2, pytest.approx(1.0))


def test_measuring_ends_when_the_estimate_has_settled(clock: Clock) -> None:
    session = session_of(clock)
    for _ in range(3):
        assert not session.measured.is_set()
        take_step(session, clock)
    assert session.measured.is_set()
    take_step(session, clock, 100.0)
    session.finish()
    assert session.estimate is not None
    assert session.estimate.steps == 2
    assert session.progress.steps_done == 4


def test_a_training_that_ends_early_is_measured_by_what_there_was(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=1, minimum=10))
    for _ in range(3):
        take_step(session, clock)
    session.finish()
    assert session.measured.is_set()
    assert session.estimate is not None
    assert session.estimate.steps == 2


def test_a_training_without_a_step_has_no_estimate(clock: Clock) -> None:
    session = session_of(clock)
    session.finish()
    assert session.measured.is_set()
    assert session.estimate is None
    assert session.measured_from_to_s is None
    assert session.progress.last_step_at_s is None


def test_a_step_inside_a_step_is_a_part_of_it(clock: Clock) -> None:
    session = session_of(clock)
    session.begin_step()
    take_step(session, clock)
    take_step(session, clock)
    session.end_step()
    session.finish()
    assert session.progress.steps_done == 1
    assert session.progress.stepping_seconds == pytest.approx(2.0)


def test_a_failed_step_does_not_count(clock: Clock) -> None:
    session = session_of(clock)
    take_step(session, clock)
    session.begin_step()
    clock.work(5.0)
    session.drop_step()
    clock.wait(5.0)
    take_step(session, clock)
    session.finish()
    assert session.progress.steps_done == 2
    assert session.progress.stepping_seconds == pytest.approx(2.0)


def test_validation_inside_a_step_is_a_part_of_it(clock: Clock) -> None:
    session = session_of(clock)
    session.begin_step()
    session.pause()
    clock.work(2.0)
    session.end_step()
    session.finish()
    assert session.progress.stepping_seconds == pytest.approx(2.0)


def test_marked_steps_win_over_those_of_a_framework(clock: Clock) -> None:
    session = session_of(clock)
    take_step(session, clock, 9.0)
    session.pause()
    for _ in range(2):
        session.begin_step(explicit=True)
        take_step(session, clock, 1.0)
        take_step(session, clock, 1.0)
        session.end_step(explicit=True)
    session.finish()
    assert session.progress.steps_done == 3
    assert session.estimate is not None
    assert session.estimate.step_seconds == pytest.approx(2.0)


def test_marks_inside_a_framework_step_are_not_counted_twice(clock: Clock) -> None:
    session = session_of(clock)
    for _ in range(2):
        session.begin_step()
        take_step(session, clock, 1.0, explicit=True)
        take_step(session, clock, 1.0, explicit=True)
        session.end_step()
    session.finish()
    assert session.progress.steps_done == 4


def test_several_steps_may_end_at_once(clock: Clock) -> None:
    session = session_of(clock)
    for _ in range(2):
        session.begin_step()
        clock.work(8.0)
        session.end_step(8)
    session.finish()
    assert session.progress.steps_done == 16
    assert session.estimate is not None
    assert session.estimate.step_seconds == pytest.approx(1.0)


def test_total_counts_from_where_the_framework_begins(clock: Clock) -> None:
    session = session_of(clock)
    assert session.steps_total is None
    session.expect(5)
    for _ in range(5):
        take_step(session, clock)
    session.pause()
    assert session.steps_total == 5
    session.expect(10)
    assert session.steps_total == 15
    session.expect(None)
    assert session.steps_total is None


def test_total_is_never_less_than_the_steps_done(clock: Clock) -> None:
    session = session_of(clock)
    session.expect_total(1)
    for _ in range(3):
        take_step(session, clock, explicit=True)
    session.finish()
    assert session.steps_total == 3


def test_counting_only_measures_nothing(clock: Clock) -> None:
    session = Session(SHORT, clock.read_active, measure=False, clock=clock.read)
    assert session.measured.is_set()
    for _ in range(3):
        take_step(session, clock)
    session.finish()
    assert session.estimate is None
    assert session.progress.steps_done == 3


class Marks:
    """Stands for a framework's trace: keeps what was marked, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seen: list[tuple[Mark, float, float]] = []

    @contextlib.contextmanager
    def annotate(self, mark: Mark) -> Iterator[None]:
        begin = self._clock.now
        yield
        self.seen.append((mark, begin - 100.0, self._clock.now - 100.0))


def test_a_traced_step_is_marked_with_its_wait_for_input(clock: Clock) -> None:
    session = session_of(clock)
    marks = Marks(clock)
    done = session.trace(2, marks.annotate)
    for _ in range(4):
        take_step(session, clock, 1.0)
        clock.wait(3.0)
    assert done.is_set()
    assert marks.seen == [
        (Mark.INPUT, 1.0, 4.0),
        (Mark.STEP, 0.0, 4.0),
        (Mark.INPUT, 5.0, 8.0),
        (Mark.STEP, 4.0, 8.0),
    ]


def test_a_trace_ends_when_its_last_step_is_over(clock: Clock) -> None:
    session = session_of(clock)
    done = session.trace(2, Marks(clock).annotate)
    take_step(session, clock)
    take_step(session, clock)
    assert not done.is_set()
    session.pause()
    assert done.is_set()


def test_a_gap_is_not_marked(clock: Clock) -> None:
    session = session_of(clock)
    marks = Marks(clock)
    session.trace(5, marks.annotate)
    take_step(session, clock, 1.0)
    session.pause()
    clock.work(50.0)
    take_step(session, clock, 1.0)
    session.pause()
    steps = [(begin, end) for mark, begin, end in marks.seen if mark is Mark.STEP]
    assert steps == [(0.0, 1.0), (51.0, 52.0)]


def test_tracing_ends_with_the_training(clock: Clock) -> None:
    session = session_of(clock)
    done = session.trace(5, Marks(clock).annotate)
    take_step(session, clock)
    session.finish()
    assert done.is_set()
    assert session.trace(5, Marks(clock).annotate).is_set()


def test_a_mark_that_fails_ends_the_trace_and_not_the_training(clock: Clock) -> None:
    def broken(_mark: Mark) -> contextlib.AbstractContextManager[None]:
        raise RuntimeError("no trace today")

    session = session_of(clock)
    done = session.trace(5, broken)
    take_step(session, clock)
    session.finish()
    assert done.is_set()
    assert session.progress.steps_done == 1


def turn(session: Session, clock: Clock, seconds: float = 1.0) -> None:
    clock.work(seconds)
    session.turn_step()


def test_where_only_ends_are_told_a_step_lasts_from_one_to_the_next(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=0, minimum=3, maximum=3))
    for seconds in (50.0, 1.0, 2.0, 3.0):
        turn(session, clock, seconds)
    assert session.estimate is not None
    assert (session.estimate.steps, session.estimate.step_seconds) == (3, pytest.approx(2.0))
    assert session.progress.steps_done == 4


def test_a_step_that_was_interrupted_counts_but_is_not_timed(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=0, minimum=9, maximum=9))
    turn(session, clock)
    turn(session, clock)
    session.drop_step()
    clock.work(100.0)  # validation
    turn(session, clock)
    turn(session, clock)
    assert session.progress[:2] == (4, pytest.approx(4.0))
    assert session.estimate is not None
    assert (session.estimate.steps, session.estimate.step_seconds) == (2, pytest.approx(1.0))


def test_steps_not_timed_belong_to_the_warm_up(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=2, minimum=2, maximum=2))
    for seconds in (50.0, 20.0, 1.0, 1.0):
        turn(session, clock, seconds)
    assert session.measured.is_set()
    assert session.estimate is not None
    assert session.estimate.step_seconds == pytest.approx(1.0)


def test_marks_of_the_user_win_over_ends_that_are_told(clock: Clock) -> None:
    session = session_of(clock)
    turn(session, clock)
    for _ in range(3):
        take_step(session, clock, explicit=True)
        session.turn_step()
    session.finish()
    assert session.progress.steps_done == 1 + 3


def test_where_only_ends_are_told_each_step_is_traced(clock: Clock) -> None:
    marks: list[Mark] = []

    @contextlib.contextmanager
    def annotate(mark: Mark) -> Iterator[None]:
        yield
        marks.append(mark)

    session = session_of(clock)
    turn(session, clock)
    done = session.trace(2, annotate)
    for _ in range(3):
        assert not done.is_set()
        turn(session, clock)
    assert done.is_set()
    assert marks.count(Mark.STEP) == 2


def test_a_step_dropped_while_it_is_traced_is_told_to_the_trace(clock: Clock) -> None:
    kept: list[Mark] = []

    @contextlib.contextmanager
    def annotate(mark: Mark) -> Iterator[None]:
        yield
        kept.append(mark)

    session = session_of(clock)
    session.trace(2, annotate)
    turn(session, clock)
    session.drop_step()
    assert Mark.STEP not in kept
    turn(session, clock)
    turn(session, clock)
    assert kept.count(Mark.STEP) == 1


def test_waiting_within_a_traced_step_is_marked(clock: Clock) -> None:
    marks: list[Mark] = []

    @contextlib.contextmanager
    def annotate(mark: Mark) -> Iterator[None]:
        yield
        marks.append(mark)

    session = session_of(clock)
    with session.waiting():
        pass
    assert marks == []
    session.trace(2, annotate)
    turn(session, clock)
    with session.waiting():
        pass
    assert marks == [Mark.INPUT]


def test_measuring_again_forgets_what_was_measured(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=0, minimum=2, maximum=2))
    for _ in range(4):
        take_step(session, clock, 1.0)
    assert session.measured.is_set()
    session.measure_again()
    assert not session.measured.is_set()
    for _ in range(5):
        take_step(session, clock, 3.0)
    assert session.measured.is_set()
    assert session.estimate is not None
    assert session.estimate.step_seconds == pytest.approx(3.0)
    assert session.estimate.active_fraction == pytest.approx(1.0)


def test_a_change_is_told_once_steps_differ_from_what_was_measured(clock: Clock) -> None:
    session = session_of(clock, Window(warm_up=0, minimum=2, maximum=2))
    for _ in range(3):
        take_step(session, clock, 1.0)
    changed = session.watch(ChangeWatch(1.0))
    for _ in range(60):
        take_step(session, clock, 1.0)
    assert not changed.is_set()
    for _ in range(60):
        take_step(session, clock, 2.0)
    assert changed.is_set()


def test_the_end_of_a_training_ends_every_wait(clock: Clock) -> None:
    session = session_of(clock)
    changed = session.watch(ChangeWatch(1.0))
    session.finish()
    assert changed.is_set()
    assert session.watch(ChangeWatch(1.0)).is_set()
    session.measure_again()
    assert session.measured.is_set()


def test_what_the_kernel_counts_is_read_around_the_measured_steps(clock: Clock) -> None:
    def account() -> Account:
        return Account(clock.now, clock.active, 0.0, {})

    session = Session(
        Window(warm_up=2, minimum=3, maximum=3),
        clock.read_active,
        account=account,
        clock=clock.read,
    )
    for _ in range(7):
        take_step(session, clock, 1.0)
    assert session.accounts is not None
    before, after = session.accounts
    assert (before.at_s, after.at_s) == (102.0, 105.0)


def disturbed_session(clock: Clock, window: Window, shares: list[float]) -> Session:
    """Others take so much of each second that begins: the first, the second, ..., the last."""

    def account() -> Account:
        taken = sum(shares[min(second, len(shares) - 1)] for second in range(int(clock.now) - 100))
        return Account(clock.now, clock.active, clock.active + taken, {"t": (clock.active, taken)})

    return Session(window, clock.read_active, account=account, clock=clock.read)


def measured_seconds(session: Session) -> list[float]:
    assert session.accounts is not None
    return [account.at_s - 100.0 for account in session.accounts]


def test_what_others_disturbed_is_tried_again_until_nobody_does(clock: Clock) -> None:
    window = Window(warm_up=0, minimum=2, maximum=8)
    session = disturbed_session(clock, window, [0.4, 0.4, 0.3, 0.3, 0.02])
    for _ in range(7):
        assert not session.measured.is_set()
        take_step(session, clock)
    assert session.measured.is_set()
    assert measured_seconds(session) == [4.0, 6.0]
    assert session.estimate is not None
    assert session.estimate.steps == 2


def test_where_others_never_stop_all_steps_count(clock: Clock) -> None:
    session = disturbed_session(clock, Window(warm_up=0, minimum=2, maximum=8), [0.4])
    for _ in range(9):
        assert not session.measured.is_set()
        take_step(session, clock)
    assert session.measured.is_set()
    assert measured_seconds(session) == [0.0, 8.0]
    assert session.estimate is not None
    assert session.estimate.steps == 8


def test_what_nobody_disturbed_counts_alone_only_if_it_is_no_mere_rest(clock: Clock) -> None:
    session = disturbed_session(clock, Window(warm_up=0, minimum=2, maximum=3), [0.4, 0.4, 0.02])
    for _ in range(4):
        take_step(session, clock)
    assert session.measured.is_set()
    assert measured_seconds(session) == [0.0, 3.0]
    assert session.estimate is not None
    assert session.estimate.steps == 3


def test_what_nobody_disturbed_is_measured_once(clock: Clock) -> None:
    session = disturbed_session(clock, Window(warm_up=0, minimum=2, maximum=8), [0.02])
    for _ in range(3):
        take_step(session, clock)
    assert session.measured.is_set()


def test_a_training_that_ends_during_a_further_try_has_been_measured(clock: Clock) -> None:
    session = disturbed_session(clock, Window(warm_up=0, minimum=2, maximum=8), [0.4])
    for _ in range(3):
        take_step(session, clock)
    session.finish()
    assert measured_seconds(session) == [0.0, 3.0]
    assert session.estimate is not None
    assert session.estimate.steps == 3


def test_what_the_kernel_does_not_tell_is_left_out(clock: Clock) -> None:
    def account() -> Account:
        raise PermissionError("/proc is hidden")

    session = Session(SHORT, clock.read_active, account=account, clock=clock.read)
    for _ in range(5):
        take_step(session, clock)
    assert session.accounts is None
    assert session.estimate is not None
