"""The network between worker and server is cut or stands still: trainings go on, all ends truly."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from tests.faults.cluster import private_environment
from tests.faults.diary import Diary, Plan
from tests.faults.lives import Life, Nursery
from tests.faults.proxy import Proxy
from tests.waiting import PATIENCE_SECONDS, until
from tests.worker.conftest import Pool
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker.processes import ProcessTrees, send_signal

pytestmark = pytest.mark.server

Ledger = Callable[[FlowRun], tuple[LedgerEntry, ...]]
Trouble = Callable[[Proxy], None]


@pytest.fixture(scope="module")
def proxy(prefect_server: str) -> Iterator[Proxy]:
    """The network between the server and workers with their trainings."""
    port = urlsplit(prefect_server).port
    assert port is not None
    proxy = Proxy(port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def nursery(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    directory = tmp_path_factory.mktemp("nursery")
    url = f"http://127.0.0.1:{proxy.port}/api"
    nursery = Nursery(
        "worker", private_environment(directory, PREFECT_API_URL=url), directory / "log"
    )
    yield nursery
    nursery.close()


@pytest.fixture
def worker(nursery: Nursery, pool: Pool, settings: XonarSettings, proxy: Proxy) -> Iterator[Life]:
    """A worker in a process of its own, beyond the network."""
    own = {f"XONAR_{name.upper()}": str(value) for name, value in settings if value is not None}
    arguments = ("worker", "start", "--pool", pool.name, "--name", "one")
    worker = nursery.start(pool.directory / "worker.log", *arguments, environment=own)
    yield worker
    proxy.heal()
    worker.send(signal.SIGKILL)
    until(lambda: not worker.alive)
    for directory, pids in ProcessTrees().scan().items():  # only where a test has failed
        if directory.startswith(str(settings.home)):
            send_signal(pids, signal.SIGKILL)


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary.jsonl")


async def submit(pool: Pool, diary: Diary, plan: Plan) -> FlowRun:
    variables = {"command": plan.command(diary.path), "memory_request_mib": plan.memory_request_mib}
    return await pool.submit(name=plan.name, job_variables=variables)


async def has(diary: Diary, run: FlowRun, deed: str, away: float = 0.0) -> None:
    def done() -> bool:
        diary.read_on()
        return diary.count(str(run.id), deed) > 0

    await eventually(done, PATIENCE_SECONDS + away)


async def ends_as(pool: Pool, ledger: Ledger, run: FlowRun, state: str, away: float = 0.0) -> str:
    """Wait until a run has ended, in this state, and its slot is free; returns its message."""

    async def ended() -> bool:
        reached = (await pool.read(run)).state
        free = [entry.state for entry in ledger(run)] == [SlotState.ENDED]
        return reached is not None and reached.is_final() and free

    await eventually(ended, PATIENCE_SECONDS + away)
    reached = (await pool.read(run)).state
    assert reached is not None
    assert reached.name == state
    return str(reached.message)


def begun(diary: Diary, runs: list[FlowRun]) -> list[int]:
    diary.read_on()
    return [diary.count(str(run.id), "begun") for run in runs]


async def a_network_fails_and_comes_back(
    pool: Pool,
    ledger: Ledger,
    diary: Diary,
    proxy: Proxy,
    trouble: Trouble,
    *,
    seconds: float,
) -> None:
    """Have trainings end and die while the network is away for so many seconds."""
    running = await submit(pool, diary, Plan(name="running", seconds=seconds))
    dies = await submit(pool, diary, Plan(name="dies", seconds=seconds / 4, exit_code=3))
    for run in (running, dies):
        await has(diary, run, "begun")
    trouble(proxy)
    held = [await submit(pool, diary, Plan(name=f"held-{number}")) for number in range(2)]
    await has(diary, dies, "failed", seconds)
    await has(diary, running, "worked", seconds)
    proxy.heal()
    # The client of Prefect waits up to half a minute before it asks again.
    await ends_as(pool, ledger, running, "Completed", seconds)
    assert "exit code 3" in await ends_as(pool, ledger, dies, "Crashed")
    for run in held:
        await ends_as(pool, ledger, run, "Completed")
    assert begun(diary, [running, dies, *held]) == [1, 1, 1, 1]


@pytest.mark.parametrize("trouble", [Proxy.cut, Proxy.stall], ids=["cut", "stalled"])
async def test_what_ends_or_dies_without_a_network_is_told_when_it_is_back(
    pool: Pool,
    worker: Life,
    ledger: Ledger,
    proxy: Proxy,
    diary: Diary,
    trouble: Trouble,
) -> None:
    await a_network_fails_and_comes_back(pool, ledger, diary, proxy, trouble, seconds=4.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trouble", [Proxy.cut, Proxy.stall], ids=["cut", "stalled"])
async def test_what_ends_or_dies_while_the_server_is_away_for_minutes_is_told_when_it_is_back(
    pool: Pool,
    worker: Life,
    ledger: Ledger,
    proxy: Proxy,
    diary: Diary,
    trouble: Trouble,
) -> None:
    await a_network_fails_and_comes_back(pool, ledger, diary, proxy, trouble, seconds=150.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_flow_that_ends_while_the_server_is_away_for_minutes_has_completed(
    pool: Pool, worker: Life, ledger: Ledger, proxy: Proxy
) -> None:
    gate = pool.directory / "gate"
    run = await pool.submit(parameters={"kind": pool.name, "until": str(gate)})

    async def trains() -> bool:
        return await pool.state(run) == "Running" and bool(await pool.task_runs(run))

    await eventually(trains)
    proxy.cut()
    gate.touch()
    # With Prefect's own patience it would have been given up after a minute.
    time.sleep(100.0)
    proxy.heal()
    await ends_as(pool, ledger, run, "Completed")


async def test_what_was_cancelled_while_the_network_was_cut_is_ended_when_it_is_back(
    pool: Pool, worker: Life, ledger: Ledger, proxy: Proxy, diary: Diary
) -> None:
    run = await submit(pool, diary, Plan(name="cancelled", seconds=300.0, deaf=True))
    await has(diary, run, "begun")
    proxy.cut()
    await pool.client.set_flow_run_state(run.id, Cancelling())
    held = await submit(pool, diary, Plan(name="held"))
    await pool.client.set_flow_run_state(held.id, Cancelling())
    proxy.heal()
    await ends_as(pool, ledger, run, "Cancelled")
    assert await pool.state(held) == "Cancelled"
    assert begun(diary, [held]) == [0]
