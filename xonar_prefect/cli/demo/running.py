"""Runs one queue under one policy: a fresh worker, all submitted at once, watched to the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from rich.console import Console

from xonar_prefect.cli.demo import live
from xonar_prefect.cli.demo.devices import DemoDevices
from xonar_prefect.cli.demo.home import Child, Home
from xonar_prefect.cli.demo.private_server import PrivateServer
from xonar_prefect.cli.demo.report import QueueResult, result_of
from xonar_prefect.cli.demo.trainings import POOL, Kind, QueuedTraining, submit
from xonar_prefect.cli.demo.watching import Stage, TrainingView, Watch
from xonar_prefect.errors import DemoError
from xonar_prefect.store import Store

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_LOOK_SECONDS = 1.0
_WORKER_STARTS_SECONDS = 120.0
_WORKER_STOPS_SECONDS = 15.0
_SETTLING_SECONDS = 30.0
_STALLED_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """All that a queue needs to run.

    Attributes:
        home: The private home.
        server: The private server.
        client: For talking to it.
        store: The store of the workers.
        devices: What the workers use.
        deployments: Ids of the deployments.
        console: Where progress is shown.
    """

    home: Home
    server: PrivateServer
    client: SyncPrefectClient
    store: Store
    devices: DemoDevices
    deployments: Mapping[Kind, UUID]
    console: Console

    def run(self, queue: Sequence[QueuedTraining], *, policy: str, label: str) -> QueueResult:
        """Run a queue to its end and return the result.

        Args:
            queue: The trainings, in the order of their submission.
            policy: Name of the worker's policy.
            label: What this run of the queue is called; also the tag of its flow runs.

        Raises:
            DemoError: Server or worker ended, or nothing advances any more.
        """
        with self._worker(policy, name=f"demo-{label}") as worker:
            names = submit(self.client, self.deployments, queue, tag=label)
            watch = Watch(self.client, self.store, names)
            title = f"{label}: {len(queue)} trainings on {self.devices}, policy {policy}"
            with live.shown(self.console, title) as show:
                views = self._watched(watch, worker, show)
        profiles = {
            (stored.profile.key, stored.profile.device_model): stored.profile
            for stored in self.store.profiles()
        }
        return result_of(views, profiles)

    @contextmanager
    def _worker(self, policy: str, name: str) -> Iterator[Child]:
        """Run a worker until the block ends; it is ready when the block begins."""
        command = [sys.executable, "-m", "prefect", "worker", "start"]
        command += ["--pool", POOL, "--type", "xonar", "--name", name]
        environment = {
            **self.server.environment,
            **self.devices.environment,
            "XONAR_POLICY": policy,
            "XONAR_POLL_SECONDS": "2",
        }
        worker = self.home.start("worker", command, environment, f"worker-{name}")
        try:
            with live.waiting(self.console, f"Starting a worker with policy {policy} ..."):
                self._await_worker(worker, name)
            yield worker
        finally:
            worker.stop(_WORKER_STOPS_SECONDS)

    def _await_worker(self, worker: Child, name: str) -> None:
        deadline = time.monotonic() + _WORKER_STARTS_SECONDS
        while time.monotonic() < deadline:
            worker.require_alive()
            self.server.child.require_alive()
            known = self.client.read_workers_for_work_pool(POOL)
            if any(each.name == name for each in known):
                return
            time.sleep(_LOOK_SECONDS)
        raise DemoError.stalled(_WORKER_STARTS_SECONDS, worker.last_words())

    def _watched(self, watch: Watch, worker: Child, show: live.Show) -> tuple[TrainingView, ...]:
        """Show the queue until every training has ended and its figures are noted."""
        import httpx

        views: tuple[TrainingView, ...] = ()
        progress: object = None
        advanced_at = time.monotonic()
        while True:
            worker.require_alive()
            self.server.child.require_alive()
            with suppress(httpx.TransportError):  # a busy server is looked at again
                views = watch.look()
                show(views)
            now = time.monotonic()
            latest = [(view.stage, view.state, view.steps_done, view.settled) for view in views]
            if latest != progress:
                progress, advanced_at = latest, now
            ended = bool(views) and all(view.stage is Stage.ENDED for view in views)
            if ended and all(view.settled for view in views):
                return views
            if ended and now - advanced_at > _SETTLING_SECONDS:
                return views
            if now - advanced_at > _STALLED_SECONDS:
                raise DemoError.stalled(_STALLED_SECONDS, worker.last_words())
            time.sleep(_LOOK_SECONDS)
