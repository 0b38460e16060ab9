"""What becomes of a run that this host could not launch."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from xonar_prefect.core.endings import Cause, Ending, pause_seconds
from xonar_prefect.core.quarantine import QuarantineCause
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.requeueing import Requeueing
from xonar_prefect.worker.slots import Slots

_logger = logging.getLogger(__name__)


class LaunchFailures:
    """Puts runs back that could not be launched, a few times each, and spares their devices.

    Without that a host on which nothing starts would use up the chances of one run after the
    other.

    Args:
        client: Of the Prefect server.
        claims: The only way in which a run's state is changed.
        requeueing: Decides how often a launch may fail.
        slots: The worker's slots.
        quarantines: Of its devices.
        clock: The time, seconds since the epoch.
        first_pause_seconds: How long a device takes nothing then; twice as long each further time.
    """

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        requeueing: Requeueing,
        slots: Slots,
        quarantines: Quarantines,
        *,
        clock: Callable[[], float],
        first_pause_seconds: float,
    ) -> None:
        self._client = client
        self._claims = claims
        self._requeueing = requeueing
        self._slots = slots
        self._quarantines = quarantines
        self._clock = clock
        self._first_pause_seconds = first_pause_seconds

    async def failed(self, flow_run: FlowRun, error: OSError) -> None:
        """Put a run back into the queue, to be tried again later, or end it.

        Raises:
            httpx.HTTPError: The server could not be told.
        """
        _logger.error("%r could not be launched: %s", flow_run.name, error)
        slot = self._slots.get(str(flow_run.id))
        for device in slot.entry.devices if slot else ():
            self._spare(device, error)
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

    def _spare(self, device: str, error: OSError) -> None:
        cause = QuarantineCause.LAUNCH_FAILS
        times = 1 + len(self._quarantines.ended(device, cause))
        until_s = self._clock() + pause_seconds(times, self._first_pause_seconds)
        self._quarantines.begin(
            device, cause, f"a training could not be launched there: {error}", until_s=until_s
        )
