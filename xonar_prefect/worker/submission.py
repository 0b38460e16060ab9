"""From a release to what can be launched: claim, verify, configure, or give back."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import anyio
import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, WorkPool

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.configuration import XonarJobConfiguration
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.limits import is_paused
from xonar_prefect.worker.queue_picture import QueuePicture
from xonar_prefect.worker.slots import Slots
from xonar_prefect.worker.telling import Telling

_GIVE_BACK_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class Submission:
    """Takes released runs out of the queue, and puts back those that cannot be launched."""

    def __init__(
        self,
        client: PrefectClient,
        *,
        pool: str,
        worker: str,
        claims: Claims,
        picture: QueuePicture,
        deployments: Deployments,
        held_runs: HeldRuns,
        slots: Slots,
        in_flight: LaunchesInFlight,
        telling: Telling,
    ) -> None:
        self._client = client
        self._pool = pool
        self._worker = worker
        self._claims = claims
        self._picture = picture
        self._deployments = deployments
        self._held_runs = held_runs
        self._slots = slots
        self._in_flight = in_flight
        self._telling = telling

    async def claim(
        self, flow_run: FlowRun, work_pool: WorkPool, worker_id: UUID | None
    ) -> XonarJobConfiguration | None:
        """Claim a run and return how it is launched.

        All that is asked of the server is asked at the same time: a device stands idle meanwhile.

        Returns:
            None when it must not be started: it was claimed, cancelled, deleted, paused or kept
            back by a limit since the queue was read.

        Raises:
            httpx.HTTPError: The server could not be asked.
            ObjectNotFound: Its flow, queue or pool was deleted.
        """
        claimed, paused, deployment, flow = await asyncio.gather(
            self._claims.claim(flow_run),
            is_paused(self._client, self._pool, flow_run.work_queue_id),
            self._deployments.read_now(flow_run.deployment_id),
            self._held_runs.flow(flow_run.flow_id),
        )
        if paused:
            self._picture.distrust()
            if claimed:
                await self._claims.give_back(flow_run, "Its work pool or queue is paused.")
        is_orphan = deployment is None and flow_run.deployment_id is not None
        if paused or is_orphan or not claimed:
            return None
        return await XonarJobConfiguration.of(
            flow_run,
            deployment=deployment,
            flow=flow,
            work_pool=work_pool,
            worker_name=self._worker,
            worker_id=worker_id,
            client=self._client,
        )

    async def finish(self, flow_run: FlowRun) -> bool:
        """End the submission of a run; what was not launched goes back into the queue.

        Returns:
            Whether it was launched.
        """
        run_id = str(flow_run.id)
        slot = self._slots.get(run_id)
        if slot is None or slot.entry.state is not SlotState.RESERVED:
            self._in_flight.end(run_id)
            return True
        self._telling.withdraw(run_id)
        self._in_flight.end(run_id)
        with anyio.CancelScope(shield=True):
            # Whoever is not put back in time is found claimed and without a slot, and is then.
            with anyio.move_on_after(_GIVE_BACK_SECONDS):
                try:
                    await self._claims.give_back(flow_run, "It could not be launched.")
                except httpx.HTTPError as error:
                    _logger.warning("Run %r is put back later: %s", flow_run.name, error)
            await self._slots.free(slot)
        self._picture.look_again(run_id)
        return False
