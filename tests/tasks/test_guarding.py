"""A run that is to be released again gets no final state, whatever way its error takes."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Any

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.futures import wait

from xonar_prefect import xonar_task
from xonar_prefect.run_directory import RunDirectory, Stop

pytestmark = pytest.mark.server

Place = Callable[..., RunDirectory]

failures: list[str] = []


class OutOfMemoryError(RuntimeError):
    """What PyTorch raises, by name."""


@xonar_task
def train(error: str | None) -> None:
    if error == "memory":
        raise OutOfMemoryError("CUDA out of memory.")
    if error == "other":
        raise ValueError("bad shape")
    if error == "stopped":
        raise TerminationSignal(signal.SIGTERM)
    if error == "exit":  # Prefect sends itself the signal of the above, where nothing stops it
        raise SystemExit(3)


@xonar_task
async def atrain(error: str | None) -> None:
    train.fn(error)


def _note(_flow: Any, run: FlowRun, _state: Any) -> None:
    failures.append(str(run.id))


@flow(on_failure=[_note], on_crashed=[_note])
def plain(error: str | None) -> None:
    train(error)


@flow(on_failure=[_note], on_crashed=[_note])
async def asynchronous(error: str | None) -> None:
    await atrain(error)


@flow(on_failure=[_note])
def through_a_future(error: str | None) -> None:
    train.submit(error).result()


@flow(on_failure=[_note])
def returned(error: str | None) -> Any:
    future = train.submit(error)
    wait([future])
    return future


@flow(on_failure=[_note])
def wrapped(error: str | None) -> None:
    try:
        train(error)
    except OutOfMemoryError as cause:
        raise RuntimeError("the night is over") from cause


@flow(on_failure=[_note], retries=2)
def with_retries(error: str | None) -> None:
    train(error)


@flow
def below(error: str | None) -> None:
    train(error)


@flow(on_failure=[_note])
def with_a_subflow(error: str | None) -> None:
    below(error)


@flow(on_failure=[_note])
def deals_with_it(error: str | None) -> str:
    try:
        train(error)
    except OutOfMemoryError:
        return "smaller"
    return "as it was"


profiled_flow = xonar_task(
    flow(on_failure=[_note], name="profiled-flow")(lambda error=None: train.fn(error))  # type: ignore[arg-type]
)

ALL = [
    plain,
    asynchronous,
    through_a_future,
    returned,
    wrapped,
    with_retries,
    with_a_subflow,
    profiled_flow,
]


def run_of(flow: Flow[..., Any], error: str) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.create_flow_run(flow, parameters={"error": error})


def execute(flow: Flow[..., Any], run: FlowRun) -> None:
    """Run it as Prefect's engine does in a process of its own."""
    try:
        result = run_flow(flow, flow_run=run, return_type="state")
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    finally:
        gc.collect()  # the sockets of the engine's event loop, here and not at the very end


def state_of(run: FlowRun) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run.id).state_name)


@pytest.mark.parametrize("flow", ALL, ids=lambda flow: flow.name)
def test_out_of_memory_leaves_the_run_to_its_worker(
    prefect_server: str, placed: Place, flow: Flow[..., Any]
) -> None:
    run = run_of(flow, "memory")
    directory = placed(run_id=str(run.id), runs_again_out_of_memory=True)
    with pytest.raises(Pause):
        execute(flow, run)
    assert state_of(run) == "Running"
    assert str(run.id) not in failures
    told = directory.read_out_of_memory()
    assert told is not None
    assert told.message == "OutOfMemoryError: CUDA out of memory."
    assert told.profile_key is not None


def test_a_flow_that_deals_with_it_completes(prefect_server: str, placed: Place) -> None:
    run = run_of(deals_with_it, "memory")
    directory = placed(run_id=str(run.id), runs_again_out_of_memory=True)
    execute(deals_with_it, run)
    assert state_of(run) == "Completed"
    assert directory.read_out_of_memory() is None


def test_the_last_release_fails_as_any_flow_does(prefect_server: str, placed: Place) -> None:
    run = run_of(plain, "memory")
    placed(run_id=str(run.id), runs_again_out_of_memory=False)
    execute(plain, run)
    assert state_of(run) == "Failed"
    assert str(run.id) in failures


@pytest.mark.parametrize("flow", [plain, asynchronous], ids=lambda flow: flow.name)
def test_any_other_error_fails_the_run(
    prefect_server: str, placed: Place, flow: Flow[..., Any]
) -> None:
    run = run_of(flow, "other")
    placed(run_id=str(run.id), runs_again_out_of_memory=True)
    execute(flow, run)
    assert state_of(run) == "Failed"


@pytest.mark.parametrize("flow", [plain, asynchronous], ids=lambda flow: flow.name)
def test_a_training_that_its_worker_ends_leaves_the_run_to_it(
    prefect_server: str, placed: Place, flow: Flow[..., Any]
) -> None:
    run = run_of(flow, "stopped")
    placed(run_id=str(run.id)).write(Stop(reason="The worker was stopped."))
    with pytest.raises(Pause):
        execute(flow, run)
    assert state_of(run) == "Running"
    assert str(run.id) not in failures


def test_a_training_that_nobody_stopped_crashes(prefect_server: str, placed: Place) -> None:
    run = run_of(plain, "exit")
    placed(run_id=str(run.id))
    with pytest.raises(SystemExit):
        execute(plain, run)
    assert state_of(run) == "Crashed"


def test_without_a_worker_nothing_is_different(prefect_server: str) -> None:
    run = run_of(plain, "memory")
    execute(plain, run)
    assert state_of(run) == "Failed"
