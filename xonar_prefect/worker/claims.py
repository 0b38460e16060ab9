"""Claim, verify, act: the only way in which this worker changes the state of a held run.

The server accepts a write of Scheduled over *any* state, and Pending over ended ones, so a write
that rests on an old view may run a training twice or revive a cancelled one. The proposal of
Pending is the one atomic gate: of several proposals the server accepts one, and while it lasts
nobody else gets in. Therefore: propose Pending, read the run's history, and go on only if the
state below our Pending is one from which a run may start. Otherwise put that state back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateDetails, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Failed, Pending, Scheduled

AWAITING_GPU = "AwaitingGPU"
REFUSED = "Refused"

_CANCELLED = frozenset({StateType.CANCELLED, StateType.CANCELLING})

_logger = logging.getLogger(__name__)


class Claims:
    """Takes runs out of the queue for one worker, and puts them back."""

    def __init__(self, client: PrefectClient, worker_name: str) -> None:
        self._client = client
        self._claim_message = f"Claimed by worker {worker_name!r}."
        # States that could not be put back because the server was away.
        self._owed: dict[UUID, State] = {}

    def is_ours(self, state: State | None) -> bool:
        """Tell whether a Pending state is a claim of this worker's."""
        return state is not None and state.is_pending() and state.message == self._claim_message

    async def claim(self, flow_run: FlowRun) -> bool:
        """Take a scheduled run exclusively; afterwards it is Pending and ours.

        Returns:
            False when it is not to be had: claimed by somebody else, cancelled, ended, deleted,
            or kept back by a concurrency limit.
        """
        return await self._claim(flow_run.id) is not None

    async def mark_held(self, flow_run: FlowRun, reason: str) -> bool:
        """Show a scheduled run as AwaitingGPU with a reason; its scheduled time stays."""
        claim = await self._claim(flow_run.id)
        if claim is None:
            return False
        return await self._hand_back(flow_run.id, claim, _scheduled_time(flow_run.state), reason)

    async def give_back(self, flow_run: FlowRun, reason: str) -> bool:
        """Put a run that we claimed but did not start back into the queue."""
        history = await self._history(flow_run.id)
        if not history or not self.is_ours(history[-1]):
            return False
        below = history[-2] if len(history) > 1 else None
        if below is not None and below.is_final():
            await self._put_back(flow_run.id, below)
            return False
        return await self._hand_back(flow_run.id, history[-1].id, _scheduled_time(below), reason)

    async def refuse(self, flow_run: FlowRun, reason: str) -> bool:
        """End a run that can never start here, with the reason as its message."""
        if await self._claim(flow_run.id) is None:
            return False
        await self._client.set_flow_run_state(flow_run.id, Failed(name=REFUSED, message=reason))
        return True

    async def settle(self) -> None:
        """Put back what could not be put back before."""
        for run_id, state in list(self._owed.items()):
            await self._put_back(run_id, state)

    async def _claim(self, run_id: UUID) -> UUID | None:
        """Return the id of our Pending state, verified; None when the run is not to be had."""
        proposed = Pending(message=self._claim_message)
        try:
            result = await self._client.set_flow_run_state(run_id, proposed)
        except ObjectNotFound:
            return None
        if result.status != SetStateStatus.ACCEPT or result.state is None:
            return None
        if not result.state.is_pending():
            return None
        ours = result.state.id
        history = await self._history(run_id)
        position = next((i for i, state in enumerate(history) if state.id == ours), None)
        if position is None or position != len(history) - 1:
            return None  # something newer stands above our claim, and rightly so
        below = history[position - 1] if position else None
        if below is None:
            return ours
        if not below.is_scheduled():
            _logger.info("Run %s had already ended as %s; it stays so.", run_id, below.name)
            await self._put_back(run_id, below)
            return None
        if (
            below.name == AWAITING_GPU
            and position >= 2
            and history[position - 2].type in _CANCELLED
        ):
            # A mark was written over a cancel: the cancel wins.
            await self._put_back(run_id, Cancelled(message=history[position - 2].message))
            return None
        return ours

    async def _hand_back(
        self, run_id: UUID, claim: UUID, scheduled_time: datetime | None, reason: str
    ) -> bool:
        """Replace our Pending by AwaitingGPU, and give way to a cancel that came in between."""
        held: State = Scheduled(name=AWAITING_GPU, message=reason, scheduled_time=scheduled_time)
        try:
            result = await self._client.set_flow_run_state(run_id, held)
        except ObjectNotFound:
            return False
        if result.status != SetStateStatus.ACCEPT:
            return False
        history = await self._history(run_id)
        position = next((i for i, state in enumerate(history) if state.id == claim), None)
        if position is None:
            return False
        above = history[position + 1 :]
        cancel = next((state for state in above if state.type in _CANCELLED), None)
        revived = any(state.name == AWAITING_GPU for state in above) and cancel is not None
        if revived and cancel is not None and not above[-1].is_final():
            await self._put_back(run_id, Cancelled(message=cancel.message))
            return False
        return True

    async def _put_back(self, run_id: UUID, state: State) -> None:
        copy: State = State(
            type=state.type,
            name=state.name,
            message=state.message,
            data=state.data,
            state_details=StateDetails(),
        )
        self._owed[run_id] = state
        try:
            await self._client.set_flow_run_state(run_id, copy, force=True)
        except ObjectNotFound:
            pass
        self._owed.pop(run_id, None)

    async def _history(self, run_id: UUID) -> Sequence[State]:
        states = await self._client.read_flow_run_states(run_id)
        return sorted(states, key=lambda state: state.timestamp)


def _scheduled_time(state: State | None) -> datetime | None:
    return None if state is None else state.state_details.scheduled_time
