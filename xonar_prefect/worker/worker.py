"""The worker of a xonar pool: holds trainings and releases them to devices.

This module is the seam to Prefect's worker base class. Its parts are built in `wiring`; what to
do is decided in `dispatch`; what happens to started trainings stands in `supervision`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.exceptions import InfrastructureNotFound, ObjectNotFound
from prefect.types._datetime import now
from prefect.workers.base import BaseWorker

from xonar_prefect.core.endings import Cause, Ending
from xonar_prefect.core.policies import Policy, policy_named
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

_LOOK_AGAIN_SECONDS = 0.5
_STOPPED = Ending(
    cause=Cause.WORKER_STOPPED, sentence="Its worker was stopped, and its trainings with it."
)

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
        self._stops_trainings = False
        self._to_build: Callable[[], Parts] | None = None
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
            self._stops_trainings = settings.stop_trainings
            self._built, self._to_build = None, partial(self._build, settings, policy)
            await super().setup()
            self._check_pool_type()
        except BaseException as error:
            if self._built is not None:
                self._built.close()
                self._built = None
            if not isinstance(error, XonarError):
                raise
            if self._runs_task_group is not None:
                self._runs_task_group.cancel_scope.cancel()
            await super().teardown(None, None, None)
            # Prefect's command line would print a traceback for a mistake in the settings.
            self._logger.error("%s", error)
            raise SystemExit(1) from error
        if self._runs_task_group is None:
            raise RuntimeError("The base class did not set the worker up.")
        self._turns = Turns(
            self._parts,
            clock=utc_now,
            poll_seconds=settings.poll_seconds,
            watch_seconds=settings.watch_seconds,
            is_synced=self._is_synced,
        )
        self._serving = anyio.CancelScope()
        self._runs_task_group.start_soon(self._serve, self._turns, self._parts.housekeeping)

    def _build(self, settings: XonarSettings, policy: Policy) -> Parts:
        identity = Identity(
            name=self.name,
            pool=self._work_pool_name,
            queues=frozenset(self._work_queues),
            training_limit=self._training_limit,
            observe_only=self._observe_only,
        )
        return build(
            identity,
            settings,
            policy,
            self.client,
            submit=self._submit_released,
            wake_up=self._wake_up,
        )

    async def teardown(self, *exc_info: Any) -> None:
        """Stop serving; trainings live on and are adopted by the next worker of this name.

        By setting they are ended instead and put back into the queue. Cancelled once more, it does
        not wait for that any longer.
        """
        try:
            if self._turns is not None:
                self._turns.release_nothing_more()
                if all(part is None for part in exc_info):
                    # A worker that ran once stays until its trainings have ended.
                    for slot in self._parts.slots:
                        await slot.freed.wait()
                    await self._parts.slots.settle()
                elif self._stops_trainings:
                    await self._stop_trainings()
        finally:
            await self._leave(*exc_info)

    async def _stop_trainings(self) -> None:
        slots = self._parts.slots
        _logger.info("Trainings that end and go back into the queue: %d.", len(slots))
        while len(slots):
            for slot in slots:
                if slot.is_running:
                    self._parts.stopping.to_run_again(slot, _STOPPED)
            self._wake_up()
            with anyio.move_on_after(_LOOK_AGAIN_SECONDS):
                await next(iter(slots)).freed.wait()

    async def _leave(self, *exc_info: Any) -> None:
        if self._serving is not None:
            self._serving.cancel()
        try:
            await super().teardown(*exc_info)
        finally:
            if self._built is not None:
                left = len(self._built.slots)
                if left:
                    _logger.info(
                        "Trainings that run on: %d; start this worker again to adopt them.", left
                    )
                self._built.close()

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Look at everything once and decide; the base class calls this at every poll."""
        self._last_polled_time = now("UTC")
        if self._turns is None:
            return []
        return list(await self._turns.take())

    async def run(
        self,
        flow_run: FlowRun,
        configuration: XonarJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> XonarWorkerResult:
        """Launch a released training and wait until its slot is free again."""
        slot, process = await self._parts.starting.launch(flow_run, configuration)
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
                self._parts.stopping.request(slot, "Cancelled.")
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

    async def sync_with_backend(self) -> None:
        """Tell the server that this worker lives; a server that is away is told the next time.

        The base class ends the worker when that failed for a while.

        Raises:
            httpx.HTTPStatusError: The server refuses this worker.
            XonarError: It cannot work, and so the server is told nothing.
        """
        if self._built is None and self._to_build is not None:
            # Only now, as it needs the base class's client, and before the first sign of life: a
            # worker that has no device is not shown as one that serves the pool.
            self._built = await anyio.to_thread.run_sync(self._to_build)
        try:
            await super().sync_with_backend()
        except httpx.HTTPError as error:
            if not self.is_setup or (
                isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
            ):
                raise  # at the start the base class knows what to do
            _logger.warning("The Prefect server did not answer (%s); trying again.", error)

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
        """Claim and start a released run; whatever goes wrong before puts it back into the queue.

        The base class would read everything once more, one after the other, and have a run
        crashed because the server did not answer once.
        """
        try:
            await self._start(flow_run)
        except Exception as error:  # it would end the worker
            if self._goes_by(error):
                _logger.warning("Run %r is tried again later: %s", flow_run.name, error)
                self._parts.picture.distrust()
            elif isinstance(error, OSError):
                await self._parts.launch_failures.failed(flow_run, error)
            else:
                _logger.exception("Run %r could not be started.", flow_run.name)
                message = f"It could not be started: {type(error).__name__}: {error}"
                await self._propose_crashed_state(flow_run, message)
        finally:
            self._submitting_flow_run_ids.discard(flow_run.id)
            if self._cancelling_observer is not None:
                self._cancelling_observer.remove_in_flight_flow_run_id(flow_run.id)
            launched = await self._parts.submission.finish(flow_run)
            if not launched and self._turns is not None:
                self._turns.decide_again()

    def _goes_by(self, error: Exception) -> bool:
        """Tell whether an error is no fault of the run and may be over at the next attempt."""
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.is_server_error
        # What was deleted meanwhile is not in the queue the next time.
        if isinstance(error, (httpx.TransportError, ObjectNotFound, StoreError)):
            return True
        return self._parts.disk.has_failed(error)

    async def _start(self, flow_run: FlowRun) -> None:
        configuration = await self._parts.submission.claim(
            flow_run, self.work_pool, self.backend_id
        )
        if configuration is None or self._runs_task_group is None:
            return
        identifier = await self._runs_task_group.start(
            self._run_to_its_end, flow_run, configuration
        )
        await self._introduce(flow_run, identifier)

    async def _run_to_its_end(
        self,
        flow_run: FlowRun,
        configuration: XonarJobConfiguration,
        *,
        task_status: anyio.abc.TaskStatus[str],
    ) -> None:
        submitted = self._emit_flow_run_submitted_event(configuration)
        result = await self.run(flow_run, configuration, task_status)
        if submitted:
            self._emit_flow_run_executed_event(result, configuration, submitted)

    async def _introduce(self, flow_run: FlowRun, identifier: str) -> None:
        """Show on a started run which worker and which process it has."""
        slot = self._parts.slots.get(str(flow_run.id))
        if slot is None or slot.gone:
            return  # a run that was put back must not wait for this process to be cancelled
        for show in (
            partial(self.client.update_flow_run, infrastructure_pid=identifier),
            self._give_worker_labels_to_flow_run,
        ):
            try:
                await show(flow_run.id)
            except (httpx.HTTPError, ObjectNotFound) as error:
                _logger.warning("Run %r does not show where it runs: %s", flow_run.name, error)


def _log_where_prefect_logs() -> None:
    """Show this package's log beside the worker's own: Prefect configures only its loggers."""
    package, prefect = logging.getLogger("xonar_prefect"), logging.getLogger("prefect")
    for handler in prefect.handlers:
        if handler not in package.handlers:
            package.addHandler(handler)
    package.setLevel(prefect.getEffectiveLevel())
