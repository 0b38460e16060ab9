"""What becomes of a run that this host could not launch."""

from __future__ import annotations

import logging
import socket

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from xonar_prefect.core.endings import Cause, Ending
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.requeueing import Requeueing

_logger = logging.getLogger(__name__)


class LaunchFailures:
    """Puts runs back that could not be launched, a few times each."""

    def __init__(self, client: PrefectClient, claims: Claims, requeueing: Requeueing) -> None:
        self._client = client
        self._claims = claims
        self._requeueing = requeueing

    async def failed(self, flow_run: FlowRun, error: OSError) -> None:
        """Put a run back into the queue, to be tried again later, or end it.

        Raises:
            httpx.HTTPError: The server could not be told.
        """
        _logger.error("%r could not be launched: %s", flow_run.name, error)
        ending = Ending(
            cause=Cause.NOT_LAUNCHED,
            sentence=f"The training could not be launched on {socket.gethostname()}: {error}.",
        )
        try:
            present = await self._client.read_flow_run(flow_run.id)
        except ObjectNotFound:
            return
        verdict = await self._requeueing.judge(present, ending)
        if verdict.again:
            await self._requeueing.again(present, verdict)
        elif self._claims.is_ours(present.state):
            await self._client.set_flow_run_state(flow_run.id, Crashed(message=verdict.sentence))
