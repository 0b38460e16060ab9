"""The worker of a xonar pool: holds trainings and releases them to devices.

This module is the seam to Prefect's worker base class. Its parts are built in `wiring`; what to
do is decided in `dispatch`; what happens to started trainings stands in `supervision`.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.exceptions import InfrastructureNotFound
from prefect.types._datetime import now
from prefect.workers.base import BaseWorker

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.policies import policy_named
from xonar_prefect.errors import StoreError, WorkPoolError, XonarError
from xonar_prefect.settings import XonarSettings, load_settings
from xonar_prefect.worker.configuration import (
    XonarJobConfiguration,
    XonarVariables,
    XonarWorkerResult,
)
from xonar_prefect.worker.dispatch import utc_now
from xonar_prefect.worker.housekeeping import Housekeeping
from xonar_prefect.worker.turns import Turns
from xonar_prefect.worker.wiring import Identity, Parts, build

WORKER_TYPE = "xonar"

_GIVE_BACK_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class XonarWorker(BaseWorker[XonarJobConfiguration, XonarVariables, XonarWorkerResult]):
    """Holds a pool's trainings and releases them as memory-feasible, complementary pairs."""

    type = WORKER_TYPE
    job_configuration = XonarJobConfiguration
    job_configuration_variables = XonarVariables

    _description = (
        "Let deep-learning trainings share this host's GPUs: pending runs are held and released as "
        "memory-feasible, complementary pairs."
    )
    _display_name = "Xonar"

    def __init__(
        self,
        work_pool_name: str,
        work_queues: list[str] | None = None,
        name: str | None = None,
        *,
        limit: int | None = None,
        settings: XonarSettings | None = None,
        observe_only: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a worker; nothing is touched before it is started.

        Args:
            work_pool_name: The pool whose runs it takes.
            work_queues: The queues of the pool it serves; all of them by default.
            name: Its name; stable by default (`xonar-HOSTNAME`), so that after a restart it finds
                the trainings that it started.
            limit: Trainings that it runs at once; held ones do not count.
            settings: Its settings; from the environment by default.
            observe_only: Decide and explain, but let no trainings share a device.
            **kwargs: As for `prefect.workers.base.BaseWorker`.
        """
        # The base class would count a training only while its own task runs, not an adopted one;
        # the limit is a rule of the decision instead.
        super().__init__(
            work_pool_name, work_queues, name or f"xonar-{socket.gethostname()}", **kwargs
        )
        self._training_limit = limit
        self._settings = settings
        self._observe_only = observe_only
        self._built: Parts | None = None
        self._turns: Turns | None = None
        self._serving: anyio.CancelScope | None = None

    async def setup(self) -> None:
        """Take the locks, open the store and the devices, and begin to serve.

        Raises:
            SystemExit: Something is wrong that the user must mend; it is said in one sentence.
        """
        _log_where_prefect_logs()
        try:
            settings = self._settings or load_settings()
            policy = policy_named(settings.policy)
            await super().setup()
            self._check_pool_type()
            identity = Identity(
                name=self.name,
                pool=self._work_pool_name,
                queues=frozenset(self._work_queues),
                training_limit=self._training_limit,
                observe_only=self._observe_only,
            )
            self._built = await anyio.to_thread.run_sync(
                lambda: build(
                    identity,
                    settings,
                    policy,
                    self.client,
                    submit=self._submit_released,
                    wake_up=self._wake_up,
                )
            )
        except XonarError as error:
            if self._runs_task_group is not None:
                self._runs_task_group.cancel_scope.cancel()
            await super().teardown(None, None, None)
            # Prefect's command line would print a traceback for a mistake in the settings.
            self._logger.error("%s", error)
            raise SystemExit(1) from error
        if self._runs_task_group is None:
            raise RuntimeError("The base class did not set the worker up.")
        self._turns = Turns(
            self._built,
            clock=utc_now,
            poll_seconds=settings.poll_seconds,
            watch_seconds=settings.watch_seconds,
            is_synced=self._is_synced,
        )
        self._serving = anyio.CancelScope()
        self._runs_task_group.start_soon(self._serve, self._turns, self._built.housekeeping)

    async def teardown(self, *exc_info: Any) -> None:
        """Stop serving; trainings live on and are adopted by the next worker of this name."""
        if self._turns is not None and all(part is None for part in exc_info):
            # A worker that ran once stays until its trainings have ended.
            self._turns.release_nothing_more()
            for slot in self._parts.slots:
                await slot.freed.wait()
            await self._parts.slots.settle()
        if self._serving is not None:
            self._serving.cancel()
        try:
            await super().teardown(*exc_info)
        finally:
            if self._built is not None:
                left = len(self._built.slots)
                if left:
                    _logger.info(
                        "%d trainings run on; start this worker again to adopt them.", left
                    )
                self._built.close()

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Look at everything once and decide; the base class calls this at every poll."""
        self._last_polled_time = now("UTC")
        if self._turns is None:
            return []
        return await self._turns.take(fresh=True) or []

    async def run(
        self,
        flow_run: FlowRun,
        configuration: XonarJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> XonarWorkerResult:
        """Launch a released training and wait until its slot is free again."""
        slot, process = await self._parts.dispatch.launch(flow_run, configuration)
        self._parts.exits.watch(process.pid)
        identifier = f"{socket.gethostname()}:{process.pid}"
        if task_status is not None:
            task_status.started(identifier)
        await slot.freed.wait()
        return XonarWorkerResult(identifier=identifier, status_code=0)

    async def kill_infrastructure(
        self,
        infrastructure_pid: str,
        configuration: XonarJobConfiguration,  # noqa: ARG002 - the base class's signature
        grace_seconds: int = 30,
    ) -> None:
        """End a training's whole process tree.

        Raises:
            InfrastructureNotFound: It does not run here.
        """
        host, _, pid = infrastructure_pid.rpartition(":")
        for slot in self._parts.slots:
            if host == socket.gethostname() and str(slot.entry.launcher_pid) == pid:
                self._parts.supervision.request_stop(slot, "Cancelled.")
                with anyio.move_on_after(grace_seconds):
                    await slot.freed.wait()
                return
        raise InfrastructureNotFound(
            f"No training of this worker has process {infrastructure_pid}."
        )

    @property
    def _parts(self) -> Parts:
        if self._built is None:
            raise RuntimeError("The worker is not set up; use it as an async context manager.")
        return self._built

    def _check_pool_type(self) -> None:
        pool = self._work_pool
        if pool is not None and pool.type != WORKER_TYPE:
            raise WorkPoolError(
                f"Work pool {pool.name!r} is of type {pool.type!r}; make one of type 'xonar' with "
                "`xonar pool create NAME` and start the worker there."
            )

    def _is_synced(self) -> bool:
        """Whether the pool is known, and ours: the server may have been away at the start."""
        if not getattr(self, "_has_successfully_synced", True):  # new in Prefect 3.9
            return False
        self._check_pool_type()
        return True

    def _wake_up(self) -> None:
        if self._turns is not None:
            self._turns.wake_up()

    async def _serve(self, turns: Turns, housekeeping: Housekeeping) -> None:
        with self._serving or anyio.CancelScope():
            async with anyio.create_task_group() as group:
                group.start_soon(housekeeping.serve)
                await turns.serve()

    async def _submit_released(self, flow_runs: Sequence[FlowRun]) -> None:
        """Hand released runs to the base class, which claims, configures and runs them."""
        entries = [
            WorkerFlowRunResponse(
                work_pool_id=self.work_pool.id,
                work_queue_id=flow_run.work_queue_id or self.work_pool.id,
                flow_run=flow_run,
            )
            for flow_run in flow_runs
        ]
        await self._submit_scheduled_flow_runs(entries)

    async def _submit_run(self, flow_run: FlowRun) -> None:
        """Submit one run; whatever goes wrong before its launch puts it back into the queue."""
        try:
            await super()._submit_run(flow_run)
        except Exception:  # it would end the worker
            _logger.exception("Run %r could not be submitted.", flow_run.name)
        finally:
            self._submitting_flow_run_ids.discard(flow_run.id)
            with anyio.move_on_after(_GIVE_BACK_SECONDS, shield=True):
                await self._give_back_unlaunched(flow_run)

    async def _give_back_unlaunched(self, flow_run: FlowRun) -> None:
        slot = self._parts.slots.get(str(flow_run.id))
        if slot is None or slot.entry.state is not SlotState.RESERVED:
            return
        try:
            await self._parts.claims.give_back(flow_run, "It could not be launched.")
        except httpx.HTTPError as error:
            _logger.warning("Run %r is put back later: %s", flow_run.name, error)
        await self._parts.slots.free(slot)
        self._parts.dispatch.queue_is_stale()
        self._wake_up()

    async def _propose_pending_state(self, flow_run: FlowRun) -> bool:
        """Claim a run, verified, where the base class would only propose Pending."""
        try:
            return await self._parts.claims.claim(flow_run)
        except httpx.HTTPError as error:
            _logger.warning("Run %s could not be claimed: %s", flow_run.id, error)
            return False

    async def _propose_crashed_state(
        self, flow_run: FlowRun, message: str, *args: Any, **kwargs: Any
    ) -> None:
        """Leave a run to be put back that met a full disk, or a server or store that was away."""
        # The base class calls this while it handles what kept the run from its launch.
        if self._goes_by(sys.exc_info()[1]):
            _logger.warning("Run %r is tried again later: %s", flow_run.name, message)
            return
        await super()._propose_crashed_state(flow_run, message, *args, **kwargs)

    def _goes_by(self, error: BaseException | None) -> bool:
        """Tell whether an error is no fault of the run and may be over at the next attempt."""
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.is_server_error
        if isinstance(error, (httpx.TransportError, StoreError)):
            return True
        return error is not None and self._parts.disk.has_failed(error)

    async def _propose_submitting_state(self, flow_run: FlowRun) -> None:
        """Leave the claim as it is: by it this worker knows its own after a restart."""


def _log_where_prefect_logs() -> None:
    """Show this package's log beside the worker's own: Prefect configures only its loggers."""
    package, prefect = logging.getLogger("xonar_prefect"), logging.getLogger("prefect")
    for handler in prefect.handlers:
        if handler not in package.handlers:
            package.addHandler(handler)
    package.setLevel(prefect.getEffectiveLevel())
