from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import until
from xonar_prefect.profiling.counting import Progress
from xonar_prefect.profiling.processes import ProcessTree
from xonar_prefect.profiling.progress import Reporter
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory, Status


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def reporter(directory: RunDirectory) -> Reporter:
    return Reporter(directory, ProcessTree())


def a_session() -> Session:
    return Session(Window(), None)


def take_steps(session: Session, number: int) -> None:
    for _ in range(number):
        session.begin_step()
        session.end_step()
    session.pause()


def status(directory: RunDirectory) -> Status:
    found = directory.read_status()
    assert found is not None
    return found


def test_phases_follow_the_training(directory: RunDirectory, reporter: Reporter) -> None:
    session = a_session()
    reporter.begin(session, profiling=True)
    until(lambda: directory.read_status() is not None)
    assert status(directory).phase == "starting"
    take_steps(session, 2)
    until(lambda: status(directory).phase == "profiling")
    reporter.profiled(published=True)
    assert (status(directory).phase, status(directory).profiles_published) == ("training", 1)
    session.finish()
    reporter.end(session)
    assert status(directory).phase == "done"


def test_the_last_word_has_every_step(directory: RunDirectory, reporter: Reporter) -> None:
    session = a_session()
    reporter.begin(session, profiling=False)
    session.expect(7)
    take_steps(session, 7)
    session.finish()
    reporter.end(session)
    last = status(directory)
    assert (last.steps_done, last.steps_total) == (7, 7)
    assert last.stepping_seconds == session.progress.stepping_seconds
    assert last.last_step_at_s is not None


def test_trainings_of_one_process_add_up(directory: RunDirectory, reporter: Reporter) -> None:
    first = a_session()
    reporter.begin(first, profiling=True)
    take_steps(first, 3)
    first.finish()
    reporter.end(first)
    second = a_session()
    reporter.begin(second, profiling=False)
    second.expect(4)
    take_steps(second, 2)
    until(lambda: status(directory).steps_done == 5)
    assert status(directory).steps_total == 7
    second.finish()
    reporter.end(second)


def test_the_end_of_another_training_changes_nothing(
    directory: RunDirectory, reporter: Reporter
) -> None:
    mine = a_session()
    reporter.begin(mine, profiling=False)
    take_steps(mine, 1)
    reporter.end(a_session())
    until(lambda: directory.read_status() is not None)
    assert status(directory).phase == "training"
    mine.finish()
    reporter.end(mine)


def test_a_profile_that_comes_after_the_end_is_told(
    directory: RunDirectory, reporter: Reporter
) -> None:
    session = a_session()
    reporter.begin(session, profiling=True)
    session.finish()
    reporter.end(session)
    reporter.profiled(published=True)
    assert (status(directory).phase, status(directory).profiles_published) == ("done", 1)


def test_peak_memory_is_known_and_reported(directory: RunDirectory, reporter: Reporter) -> None:
    session = a_session()
    reporter.begin(session, profiling=True)
    until(lambda: directory.read_status() is not None)
    peak = reporter.peak_resident_mib
    assert peak is not None
    session.finish()
    reporter.end(session)
    reported = status(directory).peak_memory_mib
    assert reported is not None
    assert reported >= peak > 0


def test_a_run_directory_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    reporter = Reporter(RunDirectory(tmp_path / "gone"), ProcessTree())
    session = a_session()
    reporter.begin(session, profiling=True)
    reporter.profiled(published=False)
    session.finish()
    reporter.end(session)


def test_without_a_run_directory_memory_is_sampled_all_the_same() -> None:
    reporter = Reporter(None, ProcessTree())
    assert reporter.peak_resident_mib is not None


def test_steps_of_processes_that_it_started_are_its_steps(
    directory: RunDirectory, reporter: Reporter
) -> None:
    first = a_session()
    reporter.begin(first, profiling=False)
    take_steps(first, 3)
    first.finish()
    reporter.end(first)
    second = a_session()
    reporter.begin(second, lambda: (Progress(4, 2.0, 9.0), 6), profiling=True)
    until(lambda: status(directory).steps_done == 7)
    found = status(directory)
    assert (found.phase, found.steps_total, found.last_step_at_s) == ("profiling", 9, 9.0)
    second.finish()
    reporter.end(second)
    assert (status(directory).steps_done, status(directory).steps_total) == (7, 7)


def test_own_steps_count_before_those_of_other_processes(
    directory: RunDirectory, reporter: Reporter
) -> None:
    session = a_session()
    reporter.begin(session, lambda: (Progress(4, 2.0, 9.0), 6), profiling=False)
    take_steps(session, 1)
    session.finish()
    reporter.end(session)
    assert status(directory).steps_done == 1
