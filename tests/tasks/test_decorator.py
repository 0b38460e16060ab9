"""`@xonar_task` does what `@task` does, and a profile comes with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import cloudpickle
import pytest
from prefect import Flow, flow, task
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from tests.tasks.conftest import Left
from xonar_prefect import XonarTask, steps, xonar_task
from xonar_prefect.errors import FlowOverTaskError, SettingsError, UnknownParameterError
from xonar_prefect.profiling import Window

pytestmark = pytest.mark.server

SHORT = Window(warm_up=1, minimum=2, maximum=5)
Read = Callable[[UUID], Left]


def this_run() -> UUID:
    return UUID(flow_run.get_id())


def take_steps(number: int = 12) -> int:
    return sum(1 for _ in steps(range(number)))


@xonar_task(window=SHORT)
def train(size: int = 3) -> int:
    take_steps()
    return size


@xonar_task(window=SHORT)
async def train_async(size: int = 3) -> int:
    take_steps()
    await asyncio.sleep(0)
    return size


@xonar_task(window=SHORT)
def train_in_parts(size: int = 3) -> Iterator[int]:
    for part in range(size):
        take_steps()
        yield part


@xonar_task(window=SHORT)
async def train_in_parts_async(size: int = 3) -> AsyncIterator[int]:
    for part in range(size):
        take_steps()
        yield part


# The same options and shapes as @task


def test_it_is_a_task_with_the_options_of_a_task() -> None:
    @xonar_task(name="named", retries=2, tags={"a"}, log_prints=True)
    def fn() -> None: ...

    assert isinstance(fn, XonarTask)
    assert (fn.name, fn.retries, fn.tags, fn.log_prints) == ("named", 2, {"a"}, True)


def test_other_options_keep_class_and_our_own() -> None:
    tuned = xonar_task(train.fn, profile_by=["size"], window=SHORT).with_options(retries=3)
    assert isinstance(tuned, XonarTask)
    assert (tuned.retries, tuned.profile_by, tuned.window) == (3, ("size",), SHORT)
    assert tuned.with_options(profile_by="other").profile_by == ("other",)


def test_over_a_task_it_takes_its_options_over() -> None:
    plain = task(name="plain", retries=4)(train.fn)
    trained = xonar_task(plain)
    assert isinstance(trained, XonarTask)
    assert (trained.name, trained.retries) == ("plain", 4)


def test_the_function_itself_is_reachable_and_not_measured() -> None:
    assert train.fn(7) == 7


def test_it_travels_to_other_processes() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(train)).fn(4) == 4


@pytest.mark.filterwarnings("ignore:Logger 'prefect.task_runs' attempted")
def test_outside_a_flow_it_is_a_plain_task(prefect_server: str) -> None:
    assert train(8) == 8


def test_sync_with_a_profile_beside_it(left_by: Read) -> None:
    @flow
    def study() -> tuple[int, UUID]:
        return train(5), this_run()

    result, run = study()
    assert result == 5
    left = left_by(run)
    assert left.task_runs["profile train"] == "Completed"
    assert (
        "profile train" not in left.parents[next(n for n in left.task_runs if n != "profile train")]
    )
    (data,) = left.data
    assert data["version"] == 1
    assert data["profile"]["steps"] >= 2
    assert data["recipe"] == {
        "flow": "study",
        "entrypoint": None,
        "task": "train",
        "profile_by": None,
    }
    assert (data["parameters"], data["gpus"]) == ({}, 1)
    assert data["window"]["started_at_s"] < data["window"]["ended_at_s"]
    (card,) = left.cards
    assert card.key == "xonar-profile-study-train"
    assert card.task_run_id is not None
    assert "data:image/svg+xml" in card.data


async def test_async(left_by: Read) -> None:
    @flow
    async def study() -> tuple[int, UUID]:
        return await train_async(5), this_run()

    result, run = await study()
    assert result == 5
    left = await asyncio.to_thread(left_by, run)
    assert left.task_runs["profile train_async"] == "Completed"
    assert len(left.data) == 1


async def test_an_event_loop_is_never_blocked(prefect_server: str) -> None:
    ticks = 0

    @xonar_task(window=SHORT)
    async def slow() -> None:
        nonlocal ticks
        before = ticks
        for _ in steps(range(6)):
            await asyncio.sleep(0.02)
        assert ticks > before

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    @flow
    async def study() -> None:
        ticking = asyncio.ensure_future(tick())
        await slow()
        ticking.cancel()

    await study()


def test_generator(left_by: Read) -> None:
    @flow
    def study() -> tuple[list[int], UUID]:
        return list(train_in_parts(3)), this_run()

    result, run = study()
    assert result == [0, 1, 2]
    assert left_by(run).task_runs["profile train_in_parts"] == "Completed"


async def test_async_generator(left_by: Read) -> None:
    @flow
    async def study() -> tuple[list[int], UUID]:
        return [part async for part in train_in_parts_async(3)], this_run()

    result, run = await study()
    assert result == [0, 1, 2]
    left = await asyncio.to_thread(left_by, run)
    assert left.task_runs["profile train_in_parts_async"] == "Completed"


def test_submit_does_not_take_a_place_of_the_task_runner(left_by: Read) -> None:
    @flow(task_runner=ThreadPoolTaskRunner(max_workers=1))
    def study() -> tuple[int, UUID]:
        future = train.submit(6)
        return future.result(), this_run()

    result, run = study()
    assert result == 6
    left = left_by(run)
    assert left.task_runs["profile train"] == "Completed"
    assert len(left.data) == 1


def test_submit_for_a_state(prefect_server: str) -> None:
    @flow
    def study() -> Any:
        return train.submit(6, return_state=True).result()

    assert study() == 6


POOL = """
from prefect import flow
from prefect.task_runners import ProcessPoolTaskRunner
from xonar_prefect import steps, xonar_task

@xonar_task
def train(size: int) -> int:
    return sum(1 for _ in steps(range(size)))

@flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
def study() -> int:
    return train.submit(30).result()

if __name__ == "__main__":
    print(study())
"""


def test_a_task_runner_with_other_processes_runs_it_unmeasured(
    prefect_server: str, tmp_path: Path
) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PREFECT_API_URL": prefect_server},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().splitlines()[-1] == "30"
    assert "Skipped" in done.stdout + done.stderr


def test_map_measures_one_and_runs_all(left_by: Read) -> None:
    both_run = threading.Barrier(2)

    @xonar_task(window=SHORT)
    def train_together(size: int) -> int:
        both_run.wait(120)
        take_steps()
        return size

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=2))
    def study() -> tuple[list[int], UUID]:
        return train_together.map([1, 2]).result(), this_run()

    result, run = study()
    assert result == [1, 2]
    left = left_by(run)
    assert left.task_runs["profile train_together"] == "Completed"
    assert len(left.data) == 1


def test_two_trainings_at_once_the_second_is_not_measured(left_by: Read) -> None:
    both_run = threading.Barrier(2)

    def fn() -> None:
        both_run.wait(120)
        take_steps()
        both_run.wait(120)

    @flow
    def study() -> UUID:
        futures = [xonar_task(fn, name=name, window=SHORT).submit() for name in ("one", "other")]
        for future in futures:
            future.result()
        return this_run()

    left = left_by(study())
    states = [left.task_runs[f"profile {name}"] for name in ("one", "other")]
    assert sorted(states) == ["Completed", "Skipped"]
    assert len(left.data) == 1


def test_the_same_training_again_in_one_run_is_cached(left_by: Read) -> None:
    @flow
    def study() -> UUID:
        train(1)
        train(2)
        return this_run()

    left = left_by(study())
    assert len(left.data) == 1
    assert left.profile_states == ["Cached", "Completed"]


def test_a_retry_is_measured_when_the_first_attempt_took_no_step(left_by: Read) -> None:
    attempts: list[int] = []

    @xonar_task(retries=1, window=SHORT)
    def stubborn() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("not yet")
        return take_steps()

    @flow
    def study() -> UUID:
        assert stubborn() == 12
        return this_run()

    left = left_by(study())
    assert len(attempts) == 2
    assert left.task_runs["profile stubborn"] == "Completed"
    assert len(left.data) == 1


def test_the_error_of_a_training_is_its_own(left_by: Read) -> None:
    runs: list[UUID] = []

    @xonar_task(window=SHORT)
    def diverge() -> None:
        take_steps()
        raise ArithmeticError("loss is not finite")

    @flow
    def study() -> None:
        runs.append(this_run())
        diverge()

    with pytest.raises(ArithmeticError, match="loss is not finite"):
        study()
    assert left_by(runs[0]).task_runs["profile diverge"] == "Completed"


def test_a_training_that_takes_no_step_says_so(left_by: Read) -> None:
    @xonar_task
    def idle() -> str:
        return "done"

    @flow
    def study() -> UUID:
        assert idle() == "done"
        return this_run()

    left = left_by(study())
    assert left.task_runs["profile idle"] == "Unprofiled"
    assert "took no step" in left.messages["profile idle"]
    assert left.data == []
    (card,) = left.cards
    assert "took no step" in card.data


def test_a_training_that_never_starts_is_skipped(left_by: Read) -> None:
    runs: list[UUID] = []

    @task
    def upstream() -> None:
        raise OSError("no data")

    @flow
    def study() -> None:
        runs.append(this_run())
        train.submit(1, wait_for=[upstream.submit()]).wait()

    study()
    left = left_by_when_ready(left_by, runs[0])
    assert left.task_runs["profile train"] == "Skipped"


def left_by_when_ready(left_by: Read, run: UUID) -> Left:
    """Read a run one of whose task runs never ends (`NotReady` is no final state)."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    from tests.waiting import until

    found: dict[str, str] = {}

    def profile_is_there() -> bool:
        with get_client(sync_client=True) as client:
            task_runs = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run]))
            )
        found.update({t.name: t.state.name or "" for t in task_runs if t.state})
        return found.get("profile train") not in (None, "Pending", "Running")

    until(profile_is_there)
    return Left(profile_states=[], task_runs=found, messages={}, data=[], cards=[], parents={})


# profile_by


def test_profile_by_chooses_what_shapes_the_work(left_by: Read) -> None:
    shaped = xonar_task(train.fn, name="shaped", profile_by="size", window=SHORT)

    @flow
    def study(size: int = 4, seed: int = 1) -> UUID:
        shaped(size)
        return this_run()

    first, second = left_by(study(seed=1)).data[0], left_by(study(seed=2)).data[0]
    assert first["parameters"] == {"size": 4, "seed": 1}
    assert first["profile"]["key"] == second["profile"]["key"]
    other = left_by(study(size=5)).data[0]
    assert other["profile"]["key"] != first["profile"]["key"]


@pytest.mark.parametrize("how", ["call", "submit", "map"])
def test_a_misspelt_profile_by_is_told_before_the_training(prefect_server: str, how: str) -> None:
    started: list[int] = []

    @xonar_task(profile_by=["sise"])
    def misspelt(size: int) -> None:
        started.append(size)

    @flow
    def study(size: int = 4) -> None:
        if how == "call":
            misspelt(size)
        elif how == "submit":
            misspelt.submit(size)
        else:
            misspelt.map([size])

    with pytest.raises(UnknownParameterError, match="'sise', but flow 'study' has no such"):
        study()
    assert started == []


def test_a_misspelt_profile_by_over_a_flow_is_told_at_once() -> None:
    with pytest.raises(UnknownParameterError, match="sise"):

        @xonar_task(profile_by=["sise"])
        @flow
        def study(size: int = 4) -> None: ...


def test_a_dotted_path_that_is_not_there_is_told_when_the_run_starts(
    prefect_server: str,
) -> None:
    @xonar_task(profile_by=["model.depth"])
    @flow
    def study(model: dict[str, int]) -> None: ...

    with pytest.raises(UnknownParameterError, match=r"model\.depth"):
        study({"width": 2})


# Flows


def test_over_a_flow_it_is_a_flow_with_all_that_it_was() -> None:
    def hook(*_: Any) -> None: ...

    @flow(name="nightly", version="7", retries=2, on_completion=[hook])
    def plain(size: int = 3) -> int:
        return size

    trained = xonar_task(plain, window=SHORT)
    assert type(trained) is Flow
    for name in ("name", "version", "retries", "parameters", "_entrypoint", "description"):
        assert getattr(trained, name) == getattr(plain, name), name
    assert trained.on_completion_hooks == [hook]
    assert plain.fn.__code__ is trained.fn.__code__


def test_a_flow_is_measured_as_a_whole(left_by: Read) -> None:
    @xonar_task(window=SHORT)
    @flow
    def whole(size: int = 3) -> tuple[int, UUID]:
        take_steps()
        return size, this_run()

    size, run = whole.with_options(retries=1)(5)
    assert size == 5
    left = left_by(run)
    assert left.task_runs == {"profile whole": "Completed"}
    assert left.data[0]["recipe"]["task"] == "whole"
    assert left.data[0]["parameters"] == {"size": 5}


async def test_an_async_flow_is_measured(left_by: Read) -> None:
    @xonar_task(window=SHORT)
    @flow
    async def whole() -> UUID:
        take_steps()
        await asyncio.sleep(0)
        return this_run()

    left = await asyncio.to_thread(left_by, await whole())
    assert left.task_runs == {"profile whole": "Completed"}


def test_a_training_inside_a_training_is_a_part_of_it(left_by: Read) -> None:
    @xonar_task(window=SHORT)
    @flow
    def whole() -> UUID:
        assert train(3) == 3
        return this_run()

    left = left_by(whole())
    assert "profile train" not in left.task_runs
    assert left.task_runs["profile whole"] == "Completed"
    assert len(left.data) == 1


def test_a_flow_travels_to_other_processes() -> None:
    @flow
    def plain(size: int) -> int:
        return size

    assert cloudpickle.loads(cloudpickle.dumps(xonar_task(plain))).fn(4) == 4


def test_task_options_over_a_flow_are_refused() -> None:
    @flow
    def plain() -> None: ...

    with pytest.raises(SettingsError, match="retries; give options of the flow to @flow"):
        xonar_task(plain, retries=3)  # type: ignore[call-overload]


def test_a_flow_over_a_training_says_what_to_do() -> None:
    with pytest.raises(FlowOverTaskError, match="swap the two"):
        flow(train)
    with pytest.raises(FlowOverTaskError, match="swap the two"):
        flow(name="nightly")(train)


def test_drawing_a_flow_starts_no_profile(prefect_server: str) -> None:
    @xonar_task(viz_return_value=3)
    def drawn() -> int:
        raise AssertionError("not to be run")

    from prefect.utilities.visualization import TaskVizTracker

    with TaskVizTracker() as tracker:
        drawn()
    assert [node.name for node in tracker.tasks] == ["drawn-0"]
