"""Workers of one pool with stale views, and people who cancel: nothing starts twice or again."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import pytest

from tests.faults.api import Api
from tests.faults.diary import Diary, Plan
from tests.faults.journal import Journal
from tests.faults.stale import StaleReads
from tests.faults.verdict import Evidence, assert_no_violation
from tests.worker.waiting import eventually
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.processes import ProcessTrees
from xonar_prefect.worker.worker import XonarWorker

pytestmark = pytest.mark.server

_WORKERS = 4
_STALE_SHARE = 0.5
_SECONDS = 0.2

T = TypeVar("T")


def from_environment(name: str, otherwise: int) -> int:
    return int(os.environ.get(f"XONAR_RACE_{name}") or otherwise)


async def ask(question: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Ask the server in a thread, again and again while its database is locked."""
    while True:
        try:
            return await asyncio.to_thread(question, *arguments, **options)
        except httpx.HTTPError:
            await asyncio.sleep(0.1)


class Race:
    """Workers that stand for hosts: each has all cores, a home and locks of its own."""

    def __init__(self, directory: Path, api: Api, dice: random.Random) -> None:
        self.directory = directory
        self.pool = f"race-{uuid4().hex[:8]}"
        self.api = api
        self.diary = Diary(directory / "diary.jsonl")
        self.journal = Journal(directory / "journal.jsonl")
        self.plans: dict[str, Plan] = {}
        self.stale: list[StaleReads] = []
        self._staff: list[XonarWorker] = []
        self._dice = dice
        self._deployment = ""

    @asynccontextmanager
    async def workers(self, count: int) -> AsyncIterator[None]:
        """Have so many workers serve the pool while the body runs."""
        self.api.create_pool(self.pool, XonarWorker.get_default_base_job_template())
        self._deployment = self.api.create_deployment(self.pool, self.pool)
        async with AsyncExitStack() as stack:
            for number in range(count):
                await stack.enter_async_context(self._worker(f"worker-{number}"))
            yield

    async def submit(self, count: int) -> None:
        """Submit trainings, as fast as the server takes them."""
        for number in range(count):
            plan = Plan(name=f"{self.pool}-{number}", seconds=self._dice.random() * _SECONDS)
            run_id = await ask(
                self.api.submit,
                self._deployment,
                plan.name,
                command=plan.command(self.diary.path),
                memory_request_mib=plan.memory_request_mib,
            )
            self.plans[run_id] = plan

    async def cancel(self, count: int, of: int) -> None:
        """Cancel so many of the trainings at random moments before they have finished."""
        for number in range(count):
            # Spread over the race: the next one when its share of trainings is submitted.
            await eventually(lambda number=number: len(self.plans) > number * of / count)
            unfinished = await ask(self.unfinished)
            cancelled = {event.facts["run"] for event in self.journal.of("cancelling")}
            candidates = sorted(unfinished - cancelled)
            if not candidates:
                continue
            run_id = self._dice.choice(candidates)
            self.journal.note("cancelling", run=run_id)
            state = await ask(self.api.cancel, run_id)
            self.journal.note("cancelled", run=run_id, became=state and state.name)
            await asyncio.sleep(self._dice.random() * 0.1)

    def unfinished(self) -> frozenset[str]:
        """Return the runs of this race that are in no final state."""
        return self.api.unfinished() & self.plans.keys()

    async def is_over(self) -> bool:
        """Tell whether every run has ended and every slot is free."""
        slots = sum(len(worker._parts.slots) for worker in self._staff)
        return not slots and not await ask(self.unfinished)

    def stuck(self) -> list[str]:
        """Return what is not free, and where it is in its life."""
        return [
            f"{slot.entry.name} of {worker.name}: {slot.entry.state.value}, "
            f"gone {slot.gone}, vacated {slot.vacated}, concluded {slot.concluded}, {slot.pids}"
            for worker in self._staff
            for slot in worker._parts.slots
        ]

    def evidence(self) -> Evidence:
        """Collect what there is to know, when the workers have ended."""
        self.diary.read_on()
        releases = {run_id: [] for run_id in self.plans}
        for home in self.directory.glob("worker-*"):
            with Store.open(f"sqlite:///{home / 'store.db'}") as store:
                for entry in store.entries(limit=100_000):
                    releases[entry.run_id].append(entry)
        return Evidence(
            plans=self.plans,
            histories={run_id: self.api.history(run_id) for run_id in self.plans},
            diary=self.diary,
            releases=releases,
            events=self.journal.events,
            left={
                path: pids
                for path, pids in ProcessTrees().scan().items()
                if path.startswith(str(self.directory))
            },
        )

    @asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[None]:
        settings = XonarSettings(
            home=self.directory / name,
            lock_directory=self.directory / name / "locks",
            devices="cpu",
            headroom_mib=0,
            mark_after_seconds=0.0,
            visible_held=10,
            poll_seconds=0.5,
            watch_seconds=0.2,
            stop_grace_seconds=2.0,
        )
        worker = XonarWorker(self.pool, name=name, settings=settings)
        serving = asyncio.ensure_future(worker.start(printer=lambda *_: None))
        try:
            await eventually(lambda: worker._built or serving.done())
            self._staff.append(worker)
            self._make_stale(worker.client._client)
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _make_stale(self, client: httpx.AsyncClient) -> None:
        stale = StaleReads(client._transport, self._dice, _STALE_SHARE)
        client._transport = stale
        self.stale.append(stale)


async def hold_race(directory: Path, api: Api, *, runs: int, cancels: int) -> str:
    """Hold a race and judge it; returns what there is to say about it."""
    seed = from_environment("SEED", random.SystemRandom().randrange(10**6))
    print(f"seed {seed}, everything in {directory}", flush=True)
    race = Race(directory, api, random.Random(seed))
    async with race.workers(_WORKERS):
        await asyncio.gather(race.submit(runs), race.cancel(cancels, of=runs))
        try:
            await eventually(race.is_over, 60 + runs)
        except AssertionError:
            race.journal.note("standstill", unfinished=race.unfinished(), slots=race.stuck())
    evidence = race.evidence()
    done = [event.facts["became"] for event in race.journal.of("cancelled")]
    replayed = sum(stale.replayed for stale in race.stale)
    words = (
        f"seed {seed}: {_WORKERS} workers, {runs} runs, {len(done)} cancels "
        f"({done.count('Cancelled')} while held), {replayed} stale readings"
    )
    print(words)
    assert_no_violation(evidence)
    assert replayed
    return words


@pytest.fixture
def api(prefect_server: str) -> Iterator[Api]:
    api = Api(prefect_server)
    yield api
    api.close()


async def test_four_workers_race_for_twenty_runs(tmp_path: Path, api: Api) -> None:
    await hold_race(tmp_path, api, runs=20, cancels=10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_four_workers_race_for_two_hundred_runs(
    tmp_path: Path, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set `XONAR_RACE_RUNS`, `_CANCELS` and `_SEED` for another race."""
    words = await hold_race(
        tmp_path,
        api,
        runs=from_environment("RUNS", 200),
        cancels=from_environment("CANCELS", 100),
    )
    with capsys.disabled():
        print(f"\n{words}")
