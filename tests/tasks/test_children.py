"""Trainings in a flow whose steps are taken by processes that they start or fork."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from uuid import UUID

import pytest
from prefect import flow
from prefect.runtime import flow_run

from tests.tasks.conftest import Left
from xonar_prefect import xonar_task
from xonar_prefect.core.codec import profile_from_dict
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.injection import REPORTS_VARIABLE

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # this process has threads
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # so says JAX, once imported
]

Read = Callable[[UUID], Left]

STEPS = """
import time
from xonar_prefect import steps
for _ in steps(range(40)):
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        pass
"""


@pytest.fixture(autouse=True)
def nobody_above_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORTS_VARIABLE, raising=False)


def profile_of_steps_in(run: Callable[[], object], left_by: Read) -> Profile:
    @xonar_task
    def train() -> None:
        run()

    @flow
    def study() -> UUID:
        train()
        return UUID(flow_run.get_id())

    left = left_by(study())
    assert left.task_runs["profile train"] == "Completed"
    (data,) = left.data
    window = data["window"]
    assert window["step_seconds"] >= 0.004
    assert window["started_at_s"] < window["ended_at_s"]
    return profile_from_dict(data["profile"])


def has_all_figures(profile: Profile) -> None:
    assert profile.steps >= 10
    assert profile.source == "cpu-time"
    assert profile.active_fraction is not None
    assert profile.peak_memory_mib is not None


def test_a_command_that_the_training_runs_is_profiled(left_by: Read) -> None:
    command = [sys.executable, "-c", STEPS]
    has_all_figures(profile_of_steps_in(lambda: subprocess.run(command, check=True), left_by))


def test_forked_workers_are_profiled(left_by: Read) -> None:
    def run() -> None:
        worker = multiprocessing.get_context("fork").Process(target=exec, args=(STEPS, {}))
        worker.start()
        worker.join()
        assert worker.exitcode == 0

    has_all_figures(profile_of_steps_in(run, left_by))
