"""Gives a training whose processes are gone what its run still lacks: an end, or a new beginning.

A run that concluded itself is left as it is, with one exception: it had no device memory left, or
its engine was killed by the host, and it is to be released again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Failed

from xonar_prefect.core.endings import Cause, Ending, Verdict
from xonar_prefect.core.models import Limits
from xonar_prefect.core.out_of_memory import Shortage
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.worker.claims import AWAITING_GPU, Claims
from xonar_prefect.worker.endings import cut_off_at_start, ended_before_stop, ending_of
from xonar_prefect.worker.output import last_lines
from xonar_prefect.worker.requeueing import Requeueing
from xonar_prefect.worker.shortages import shortage_of
from xonar_prefect.worker.slots import Slot, Slots

CRASH_ARTIFACT = "xonar-crash"

_UNFINISHED = frozenset({StateType.PENDING, StateType.RUNNING})
_FAILED = frozenset({StateType.FAILED, StateType.CRASHED})


def waits_in_its_process(flow_run: FlowRun) -> bool:
    """Tell whether a scheduled run is about to be tried again by the process it runs in."""
    policy = flow_run.empirical_policy
    # The policy outlives the process; a run that we put back waits for a new one.
    return (
        flow_run.state_name != AWAITING_GPU
        and policy is not None
        and policy.retry_type == "in_process"
    )


class Concluding:
    """Concludes the trainings of one worker."""

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        requeueing: Requeueing,
        slots: Slots,
        *,
        limits: Limits,
    ) -> None:
        self._client = client
        self._claims = claims
        self._requeueing = requeueing
        self._slots = slots
        self._limits = limits

    def note_memory(self, slot: Slot, readings: Sequence[DeviceReading]) -> None:
        """Note who took what on a training's devices, at the moment when it is gone."""
        slot.shortage = shortage_of(slot, self._slots.partners(slot), readings, self._limits)

    async def conclude(self, slot: Slot) -> bool:
        """Conclude a training whose process tree is gone.

        Returns:
            Whether that is done; otherwise its state changed meanwhile, and it is to be concluded
            as what it is now.

        Raises:
            httpx.HTTPError: The server could not be asked; try again later.
        """
        run_id = UUID(slot.entry.run_id)
        try:
            flow_run = await self._client.read_flow_run(run_id)
        except ObjectNotFound:
            return True
        if slot.exit is not None and slot.exit.second_copy:
            await self._claims.yield_to_living(run_id)
            return True
        state = flow_run.state
        if state is None or self._is_cancelled(slot, state):
            reason = slot.stop_reason or "Cancelled; its processes have ended."
            await self._client.set_flow_run_state(run_id, Cancelled(message=reason), force=True)
            return True
        retries = state.is_scheduled() and waits_in_its_process(flow_run)
        if state.type not in _UNFINISHED | _FAILED and not retries:
            return True
        if await self._claims.is_taken_over(run_id):
            return True
        if slot.verdict is None:
            ending = await self._ending(slot, state)
            if ending is None:
                return True
            slot.verdict = await self._judge(slot, flow_run, ending)
        if slot.verdict.again:
            if await self._requeueing.again(flow_run, slot.verdict):
                return True
            state = (await self._client.read_flow_run(run_id)).state
            if state is not None and state.is_cancelling():
                return False  # it is nobody else's to cancel
        if state is None or not (state.type in _UNFINISHED or retries):
            return True
        return await self._end(slot, run_id, slot.verdict)

    async def _ending(self, slot: Slot, state: State) -> Ending | None:
        ending = ending_of(slot, state)
        if ending is not None and ending.cause is not Cause.ITSELF:
            return ending
        cut_off = cut_off_at_start(slot)
        if cut_off is None or await self._claims.has_begun(UUID(slot.entry.run_id)):
            return ending
        return cut_off

    @staticmethod
    def _is_cancelled(slot: Slot, state: State) -> bool:
        if state.type is StateType.CANCELLING:
            return True
        if slot.stop_requested_at_s is None or slot.stopped_to_run_again is not None:
            return False
        # An engine calls it a crash when it is asked to end.
        crashed = state.type is StateType.CRASHED and not ended_before_stop(slot, state)
        return crashed or state.type in _UNFINISHED

    async def _judge(self, slot: Slot, flow_run: FlowRun, ending: Ending) -> Verdict:
        if ending.cause is Cause.GPU_OUT_OF_MEMORY:
            shortage = slot.shortage or Shortage(request_mib=slot.entry.request_mib)
            ending = replace(
                ending,
                sentence=f"{ending.sentence} {shortage.sentence}",
                own_fault=shortage.is_own_fault,
                had_everything=shortage.request_mib is None or slot.training.exclusive,
            )
            said = slot.run_directory.read_out_of_memory()
            key = said.profile_key if said else None
            await self._requeueing.raise_memory(slot.entry, flow_run.id, shortage, key)
            for partner in self._slots:
                if partner.entry.run_id == shortage.offender_run_id:
                    await self._requeueing.raise_peak(partner.entry, None, shortage.offender_mib)
        return await self._requeueing.judge(flow_run, ending)

    async def _end(self, slot: Slot, run_id: UUID, verdict: Verdict) -> bool:
        output = last_lines(slot.run_directory.output)
        kind = Failed if slot.run_directory.read_out_of_memory() else Crashed
        if not await self._is_shown(run_id, verdict.sentence):
            await self._client.create_artifact(
                ArtifactCreate(
                    key=CRASH_ARTIFACT,
                    type="markdown",
                    description=verdict.sentence,
                    data=_crash_markdown(verdict.sentence, output),
                    flow_run_id=run_id,
                )
            )
        ended: State = kind(message=verdict.sentence)
        result = await self._client.set_flow_run_state(run_id, ended)
        # It is refused where somebody has cancelled the run since it was read.
        return bool(result.status is SetStateStatus.ACCEPT)

    async def _is_shown(self, run_id: UUID, sentence: str) -> bool:
        """Tell whether the artifact is there: the state may have failed to follow it."""
        shown = await self._client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]),
                key=ArtifactFilterKey(any_=[CRASH_ARTIFACT]),
            )
        )
        return any(artifact.description == sentence for artifact in shown)


def _crash_markdown(sentence: str, output: str) -> str:
    # Indented, so that nothing in the output can end the code block.
    block = "\n".join(f"    {line}" for line in output.splitlines())
    return f"{sentence}\n\nThe end of its output:\n\n{block}\n"
