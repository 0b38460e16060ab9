"""Claim, verify, act: the only way in which this worker changes the state of a held run.

The server accepts a write of Scheduled over *any* state, and Pending over ended ones, so a write
that rests on an old view may run a training twice or revive a cancelled one. The proposal of
Pending is the one atomic gate: of several proposals the server accepts one, and while it lasts
nobody else gets in. Therefore: propose Pending, read the run's history, and go on only if the
run has not ended since it was last scheduled. Otherwise put the state back in which it ended.

The history's timestamps are not the order of its writes: the server takes the time before it
waits for its database. States that were written at the same time may stand in either order, so
nothing here depends on what stands next to what, only on what has happened since a person or the
flow itself scheduled the run, which is long before.

A run that is started again after its processes have died goes the same way. Where it had already
got a final state, that state's id is noted on the run as forgiven, and only that one: a cancel that
comes in between still ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from uuid import UUID

import anyio
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import StateCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Failed, Pending, Scheduled

from xonar_prefect.worker import labels

AWAITING_GPU = "AwaitingGPU"
REFUSED = "Refused"
_CLAIMED = "Claimed by worker "

_logger = logging.getLogger(__name__)


class Claims:
    """Takes runs out of the queue for one worker, and puts them back."""

    def __init__(self, client: PrefectClient, worker_name: str) -> None:
        self._client = client
        self._claim_message = f"{_CLAIMED}{worker_name!r}."
        # States that could not be put back because the server was away.
        self._owed: dict[UUID, State] = {}
        self._in_hand: dict[UUID, anyio.Lock] = {}
        self._wanted_by: Counter[UUID] = Counter()

    def is_ours(self, state: State | None) -> bool:
        """Tell whether a Pending state is a claim of this worker's."""
        return state is not None and state.is_pending() and state.message == self._claim_message

    async def claim(self, flow_run: FlowRun) -> bool:
        """Take a scheduled run exclusively; afterwards it is Pending and ours.

        Returns:
            False when it is not to be had: claimed by somebody else, cancelled, ended, deleted,
            or kept back by a concurrency limit.
        """
        async with self._alone_with(flow_run.id):
            return await self._claim(flow_run)

    async def _claim(self, flow_run: FlowRun) -> bool:
        proposed: State = Pending(message=self._claim_message)
        try:
            result = await self._client.set_flow_run_state(flow_run.id, proposed)
        except ObjectNotFound:
            return False
        claim = result.state
        if result.status != SetStateStatus.ACCEPT or claim is None or not claim.is_pending():
            return False
        state, history = await self._read(flow_run.id)
        if state is None or state.id != claim.id:
            await self._finish_cancel(flow_run.id, state, history)
            return False  # something newer stands above our claim, and rightly so
        if ended := _ended_since_scheduled(history):
            _logger.info("Run %r had already ended as %s; it stays so.", flow_run.name, ended.name)
            await self._put_back(flow_run.id, ended)
            return False
        return True

    async def mark_held(self, flow_run: FlowRun, reason: str) -> bool:
        """Show a scheduled run as AwaitingGPU with a reason; its scheduled time stays."""
        async with self._alone_with(flow_run.id):
            if not await self._claim(flow_run):
                return False
            return await self._hand_back(flow_run.id, _scheduled_time(flow_run.state), reason)

    async def give_back(
        self,
        flow_run: FlowRun,
        reason: str,
        *,
        keeps_labels: bool = False,
        unless: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Put a run that we claimed but did not start back into the queue.

        One that was cancelled in the meantime is Cancelled by that: nobody else would see to it.

        Args:
            flow_run: The run.
            reason: Why, as a sentence.
            keeps_labels: Whether what its labels say is true of it all the same.
            unless: Asked once nobody else of this worker works on the run: whether it is wanted
                after all, because it was claimed to be started in the meantime.
        """
        async with self._alone_with(flow_run.id):
            state, history = await self._read(flow_run.id)
            if unless():
                return False
            if not self.is_ours(state):
                await self._finish_cancel(flow_run.id, state, history)
                return False
            if ended := _ended_since_scheduled(history):
                await self._put_back(flow_run.id, ended)
                return False
            scheduled = max(filter(State.is_scheduled, history), key=_timestamp, default=None)
            hand_back = self._hand_back if keeps_labels else self._hand_back_released
            return await hand_back(flow_run.id, _scheduled_time(scheduled), reason)

    async def requeue(self, flow_run: FlowRun, reason: str, *, not_before: datetime | None) -> bool:
        """Put a run that we started, and whose processes are gone, back into the queue.

        Args:
            flow_run: The run.
            reason: Why; the message of its state.
            not_before: When it may be released again; None for at once.

        Returns:
            False when it is not to be started again: completed, cancelled, paused, deleted, or
            in somebody else's hands.
        """
        async with self._alone_with(flow_run.id):
            state, history = await self._read(flow_run.id)
            if state is None or (state.is_pending() and not self.is_ours(state)):
                return False
            if state.type in (StateType.FAILED, StateType.CRASHED):
                # A final state can be left through the gate, which a cancel closes.
                await self._forgive(flow_run.id, state)
                if not await self._claim(flow_run):
                    return False
            elif state.type not in (StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED):
                return False
            elif state.is_scheduled() and state.name == AWAITING_GPU:
                return True  # done before, and not known to be done
            elif ended := _ended_since_scheduled(history):
                await self._put_back(flow_run.id, ended)
                return False
            # With a process id it would wait as Cancelling, should it be cancelled, for a
            # process to end that is no more.
            await self._client.request(
                "PATCH",
                "/flow_runs/{id}",
                path_params={"id": flow_run.id},
                json={"infrastructure_pid": None},
            )
            return await self._hand_back_released(flow_run.id, not_before, reason)

    async def yield_to_living(self, run_id: UUID) -> None:
        """Take our claim of a run back whose earlier copy turned out to be alive."""
        async with self._alone_with(run_id):
            state, history = await self._read(run_id)
            running = max((s for s in history if s.is_running()), key=_timestamp, default=None)
            if running is not None and self.is_ours(state):
                await self._put_back(run_id, running)

    async def is_taken_over(self, run_id: UUID) -> bool:
        """Tell whether another worker has claimed the run since we did."""
        _, history = await self._read(run_id)
        latest = _latest_claim(history)
        return latest is not None and not self.is_ours(latest)

    async def has_begun(self, run_id: UUID) -> bool:
        """Tell whether the run has been running since it was last claimed."""
        _, history = await self._read(run_id)
        return _has_begun(history)

    async def refuse(self, flow_run: FlowRun, reason: str) -> bool:
        """End a run that can never start here, with the reason as its message."""
        async with self._alone_with(flow_run.id):
            if not await self._claim(flow_run):
                return False
            await self._client.set_flow_run_state(flow_run.id, Failed(name=REFUSED, message=reason))
            return True

    async def settle(self) -> None:
        """Put back what could not be put back before."""
        for run_id, state in list(self._owed.items()):
            await self._put_back(run_id, state)

    @contextlib.asynccontextmanager
    async def _alone_with(self, run_id: UUID) -> AsyncIterator[None]:
        """Keep the rest of this worker off a run: several of its tasks may want the same one.

        A run that is marked looks like one that was claimed and left: to put that one "back"
        while it is claimed again to be started would have it started twice.
        """
        self._wanted_by[run_id] += 1
        try:
            async with self._in_hand.setdefault(run_id, anyio.Lock()):
                yield
        finally:
            self._wanted_by[run_id] -= 1
            if not self._wanted_by[run_id]:
                del self._wanted_by[run_id], self._in_hand[run_id]

    async def _forgive(self, run_id: UUID, state: State) -> None:
        flow_run = await self._client.read_flow_run(run_id)
        forgiven = {*_forgiven(flow_run), str(state.id)}
        await self._client.update_flow_run_labels(
            run_id, {labels.FORGIVEN_STATES: ",".join(sorted(forgiven))}
        )

    async def _hand_back_released(
        self, run_id: UUID, scheduled_time: datetime | None, reason: str
    ) -> bool:
        """Hand a run back that was released, and take back what its labels said of that."""
        # Before the state: once the run is in the queue, somebody may write a newer reason.
        try:
            await self._client.update_flow_run_labels(run_id, labels.put_back(reason))
        except ObjectNotFound:
            return False
        return await self._hand_back(run_id, scheduled_time, reason)

    async def _hand_back(self, run_id: UUID, scheduled_time: datetime | None, reason: str) -> bool:
        """Replace our Pending by AwaitingGPU, and give way to a cancel that came in between."""
        held: State = Scheduled(name=AWAITING_GPU, message=reason, scheduled_time=scheduled_time)
        try:
            result = await self._client.set_flow_run_state(run_id, held)
        except ObjectNotFound:
            return False
        if result.status != SetStateStatus.ACCEPT:
            return False
        state, history = await self._read(run_id)
        ended = _ended_since_scheduled(history)
        if ended is not None and state is not None and not state.is_final():
            await self._put_back(run_id, ended)
        return ended is None

    async def _finish_cancel(
        self, run_id: UUID, state: State | None, history: Sequence[State]
    ) -> None:
        """Conclude a run that was cancelled while we had claimed it: nobody else would.

        One that has begun since has a process, and whoever started that sees to it.
        """
        if state is None or not state.is_cancelling():
            return
        if self.is_ours(_latest_claim(history)) and not _has_begun(history):
            await self._put_back(run_id, Cancelled(message="Cancelled before it was started."))

    async def _put_back(self, run_id: UUID, state: State) -> None:
        """Write an earlier state again, with its result."""
        self._owed[run_id] = state
        copy = StateCreate(type=state.type, name=state.name, message=state.message, data=state.data)
        body = {"state": copy.model_dump(mode="json"), "force": True}
        with contextlib.suppress(ObjectNotFound):
            await self._client.request(
                "POST", "/flow_runs/{id}/set_state", path_params={"id": run_id}, json=body
            )
        self._owed.pop(run_id, None)

    async def _read(self, run_id: UUID) -> tuple[State | None, Sequence[State]]:
        """Return the run's state and all it has been in, without ends that were forgiven.

        Nothing when it was deleted.
        """
        try:
            flow_run, history = await asyncio.gather(
                self._client.read_flow_run(run_id), self._client.read_flow_run_states(run_id)
            )
        except ObjectNotFound:
            return None, ()
        forgiven = _forgiven(flow_run)
        return flow_run.state, [state for state in history if str(state.id) not in forgiven]


def _forgiven(flow_run: FlowRun) -> frozenset[str]:
    return frozenset(str(flow_run.labels.get(labels.FORGIVEN_STATES, "")).split(",")) - {""}


def _timestamp(state: State) -> datetime:
    return state.timestamp


def _scheduled_time(state: State | None) -> datetime | None:
    return None if state is None else state.state_details.scheduled_time


def _latest_claim(history: Sequence[State]) -> State | None:
    """Return the latest claim of any worker."""
    claims = [s for s in history if s.is_pending() and (s.message or "").startswith(_CLAIMED)]
    return max(claims, key=_timestamp, default=None)


def _has_begun(history: Sequence[State]) -> bool:
    """Tell whether a run has been running since it was last claimed."""
    since = max((s for s in history if s.is_pending()), key=_timestamp, default=None)
    return any(s.is_running() and (not since or s.timestamp > since.timestamp) for s in history)


def _ended_since_scheduled(history: Sequence[State]) -> State | None:
    """Return the latest state in which a run ended after it was last properly scheduled.

    AwaitingGPU does not count as scheduling: it may have been written over a cancel.
    """
    scheduled = [s for s in history if s.is_scheduled() and s.name != AWAITING_GPU]
    since = max(scheduled, key=_timestamp, default=None)
    ended = [s for s in history if s.is_final() or s.is_cancelling()]
    latest = max(ended, key=_timestamp, default=None)
    if latest is None or (since is not None and latest.timestamp < since.timestamp):
        return None
    return latest
