"""A pool with deployments on the session's server, and a worker with a home of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.flows import load_flow_from_entrypoint

from tests.disks import mounted
from tests.waiting import until
from tests.worker.trainings import succeed, tiny, write_trainings
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.processes import ProcessTrees, send_signal
from xonar_prefect.worker.slots import Slot
from xonar_prefect.worker.worker import XonarWorker


@dataclass
class Pool:
    """A xonar pool, and what its trainings and its worker left behind."""

    client: PrefectClient
    name: str
    flow_id: UUID
    directory: Path
    deployments: dict[str, UUID] = field(default_factory=dict)

    async def deploy(self, name: str, **options: Any) -> UUID:
        """Deploy `train.py:train` under a name."""
        self.deployments[name] = await self.client.create_deployment(
            flow_id=self.flow_id,
            name=f"{self.name}-{name}",
            work_pool_name=self.name,
            **{"path": str(self.directory), "entrypoint": "train.py:train", **options},
        )
        return self.deployments[name]

    async def submit(
        self, *, name: str | None = None, deployment: str = "plain", **options: Any
    ) -> FlowRun:
        """Submit a run of a deployment, which is made when there is none."""
        if deployment not in self.deployments:
            await self.deploy(deployment)
        return await self.client.create_flow_run_from_deployment(
            self.deployments[deployment], name=name, **options
        )

    async def tiny(self, *deeds: str, name: str | None = None, **variables: Any) -> FlowRun:
        """Submit a tiny training."""
        command = tiny(self.directory, *deeds)
        return await self.submit(name=name, job_variables={"command": command, **variables})

    async def succeed(self, *between: str, name: str | None = None, **variables: Any) -> FlowRun:
        """Submit a tiny training that completes."""
        command = succeed(self.directory, *between)
        return await self.submit(name=name, job_variables={"command": command, **variables})

    def open(self, gate: str) -> None:
        """Let trainings pass that wait for this gate."""
        (self.directory / gate).touch()

    async def read(self, flow_run: FlowRun) -> FlowRun:
        return await self.client.read_flow_run(flow_run.id)

    async def state(self, flow_run: FlowRun) -> str:
        """Return the name of a run's state."""
        return str((await self.read(flow_run)).state_name)

    async def code(self, flow_run: FlowRun) -> object:
        """Return the reason code that a run shows."""
        return (await self.read(flow_run)).labels.get("xonar.reason-code")

    async def update(self, **changes: Any) -> None:
        """Change the pool."""
        await self.client.update_work_pool(self.name, WorkPoolUpdate(**changes))

    async def artifacts(self, flow_run: FlowRun, key: str) -> list[Artifact]:
        return await self.client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]),
                key=ArtifactFilterKey(any_=[key]),
            )
        )

    async def task_runs(self, flow_run: FlowRun) -> dict[str, str | None]:
        """Return the states of a run's task runs by the names of their tasks."""
        task_runs = await self.client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
        )
        return {task_run.name.rsplit("-", 1)[0]: task_run.state_name for task_run in task_runs}

    def starts(self, flow_run: FlowRun) -> list[int]:
        """Return the process ids under which a tiny training was started."""
        path = self.directory / f"{flow_run.id}.started"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def left(self, flow_run: FlowRun) -> int | None:
        """Return the process that a tiny training left behind."""
        path = self.directory / f"{flow_run.id}.left"
        return int(path.read_text()) if path.exists() and path.read_text() else None


@pytest.fixture
async def pool(prefect_server: str, tmp_path: Path) -> AsyncIterator[Pool]:
    write_trainings(tmp_path)
    async with get_client() as client:
        name = f"pool-{uuid4().hex[:8]}"
        template = XonarWorker.get_default_base_job_template()
        await client.create_work_pool(
            WorkPoolCreate(name=name, type="xonar", base_job_template=template)
        )
        flow = load_flow_from_entrypoint(f"{tmp_path / 'train.py'}:train")
        flow_id = await client.create_flow(flow)
        yield Pool(client, name, flow_id, tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> XonarSettings:
    """One processor core as the only device, and an impatient worker."""
    return XonarSettings(
        home=tmp_path / "home",
        lock_directory=tmp_path / "locks",
        devices="cpu",
        cpu_devices=str(min(os.sched_getaffinity(0))),
        headroom_mib=0,
        mark_after_seconds=0.2,
        poll_seconds=0.5,
        watch_seconds=0.1,
        stop_grace_seconds=2.0,
        max_requeues=0,
        requeue_pause_seconds=0.1,
    )


@pytest.fixture
def ledger(settings: XonarSettings) -> Callable[[FlowRun], tuple[LedgerEntry, ...]]:
    """Read a run's releases, newest first, from the store of the worker."""

    def read(flow_run: FlowRun) -> tuple[LedgerEntry, ...]:
        if not (settings.home / "store.db").exists():
            return ()
        with Store.open(settings.effective_store_url) as store:
            return store.entries(run_id=str(flow_run.id))

    return read


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB and 200 inodes."""
    with mounted(tmp_path / "disk") as directory:
        yield directory


def kill(slots: Iterable[Slot]) -> None:
    """Kill what runs in slots, and wait for its end."""

    def is_gone(slot: Slot) -> bool:
        # Again and again: a process that was started just now does not bear its mark yet.
        pids = ProcessTrees().scan().get(slot.entry.run_directory, [])
        send_signal(pids, signal.SIGKILL)
        return not pids and (slot.process is None or slot.process.poll() is not None)

    for slot in slots:
        until(partial(is_gone, slot))


Working = Callable[..., AbstractAsyncContextManager[XonarWorker]]


@pytest.fixture
def working(pool: Pool, settings: XonarSettings) -> Working:
    """Have a worker serve the pool in this process while the body runs."""

    @asynccontextmanager
    async def working(**options: Any) -> AsyncIterator[XonarWorker]:
        worker = XonarWorker(pool.name, **{"name": "one", "settings": settings, **options})
        serving = asyncio.ensure_future(worker.start(printer=lambda *_: None))
        try:
            await eventually(lambda: worker._turns or serving.done())
            yield worker
        finally:
            slots = list(worker._built.slots) if worker._built else []
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            kill(slots)  # there are some only where a test has failed

    return working
