"""Ends trainings: because somebody cancelled them, or because they cannot end themselves."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType

from xonar_prefect.core.endings import Cause, Ending
from xonar_prefect.run_directory import Stop
from xonar_prefect.worker.memory_complaints import MemoryComplaints
from xonar_prefect.worker.processes import send_signal
from xonar_prefect.worker.slots import Slot, Slots

_STATES_EVERY_SECONDS = 1.0
# Of its grace, what Prefect has to see a cancel and to end the run with its hooks.
_OWN_SHARE = 2 / 3

_logger = logging.getLogger(__name__)


class Stopping:
    """Notices which trainings are to end, and ends their process trees within their grace.

    Args:
        client: Of the Prefect server.
        slots: The worker's slots.
        clock: The time, seconds since the epoch.
        grace_seconds: From the request to the end of the last process.
        linger_seconds: How long processes may live on after their run is over.
    """

    def __init__(
        self,
        client: PrefectClient,
        slots: Slots,
        *,
        clock: Callable[[], float],
        grace_seconds: float,
        linger_seconds: float,
    ) -> None:
        self._client = client
        self._slots = slots
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._linger_seconds = linger_seconds
        self._complaints = MemoryComplaints(clock)
        self._states_read_at_s = 0.0

    async def look(self) -> None:
        """Look for reasons to end a training: its run's state, and what it prints."""
        running = [
            slot for slot in self._slots if slot.is_running and slot.stop_requested_at_s is None
        ]
        for slot in running:
            self._heed_complaints(slot)
        now = self._clock()
        if not running or now - self._states_read_at_s < _STATES_EVERY_SECONDS:
            return
        self._states_read_at_s = now
        wanted = FlowRunFilter(
            id=FlowRunFilterId(any_=[UUID(slot.entry.run_id) for slot in running])
        )
        try:
            runs = await self._client.read_flow_runs(flow_run_filter=wanted)
        except httpx.HTTPError as error:
            _logger.warning("Could not read the states of running trainings: %s", error)
            return
        by_id = {str(run.id): run for run in runs}
        for slot in running:
            self._heed_state(slot, by_id.get(slot.entry.run_id), now)

    def request(self, slot: Slot, reason: str, *, at_once: bool = False) -> None:
        """Give a training its grace to end by itself, then end its whole process tree.

        Args:
            slot: The training.
            reason: Why, as a sentence; the message of its final state.
            at_once: It knows of nothing to end for: ask it now, and let it have all the grace.
        """
        if slot.stop_requested_at_s is not None:
            return
        now = slot.stop_requested_at_s = self._clock()
        slot.ask_at_s = now if at_once else now + _OWN_SHARE * self._grace_seconds
        slot.stop_reason = reason
        _logger.info("Stopping %r: %s", slot.entry.name, reason)
        try:
            runs_again = slot.stopped_to_run_again is not None
            slot.run_directory.write(Stop(reason=reason, runs_again=runs_again))
        except OSError as error:  # its process may then call its end a crash for a moment
            _logger.warning("%r is stopped untold: %s", slot.entry.name, error)

    def to_run_again(self, slot: Slot, ending: Ending) -> None:
        """End a training in order to release it again.

        Args:
            slot: The training.
            ending: What its end is to count as.
        """
        if slot.stop_requested_at_s is None:
            slot.stopped_to_run_again = ending
            self.request(slot, ending.sentence, at_once=True)

    def enforce(self, slot: Slot) -> None:
        """Ask or kill, as its grace goes by, a training that is to end."""
        if slot.stop_requested_at_s is None:
            return
        now = self._clock()
        # The launcher last, which reaps what it left and tells how it ended.
        pids = without_launcher(slot) or slot.pids
        if now - slot.stop_requested_at_s >= self._grace_seconds:
            send_signal(pids, signal.SIGKILL)
        elif now >= slot.ask_at_s:
            # Once each: another one would interrupt what the first has them do.
            send_signal(set(pids) - slot.asked_pids, signal.SIGTERM)
            slot.asked_pids.update(pids)

    def forget(self, slot: Slot) -> None:
        """Its slot is free."""
        self._complaints.forget(slot.run_directory.output)

    def _heed_complaints(self, slot: Slot) -> None:
        steps_done = slot.status.steps_done if slot.status else 0
        complaint = self._complaints.endless(slot.run_directory.output, steps_done)
        if complaint is not None:
            sentence = f"The training asked for device memory without end ({complaint})."
            ending = Ending(cause=Cause.GPU_OUT_OF_MEMORY, sentence=sentence, never_ended=True)
            self.to_run_again(slot, ending)

    def _heed_state(self, slot: Slot, run: FlowRun | None, now_s: float) -> None:
        if run is None:
            self.request(slot, "Its flow run was deleted.")
        elif run.state_type is StateType.CANCELLING:
            self.request(slot, "Cancelled.")
        elif run.state_type is StateType.CANCELLED:
            # Cancelled before it began; left alone, it would begin all the same.
            self.request(slot, "Cancelled.", at_once=True)
        elif run.state is not None and run.state.is_final():
            self._end_what_lingers(slot, run.state, now_s)

    def _end_what_lingers(self, slot: Slot, state: State, now_s: float) -> None:
        """End the processes of a run that has long been over: they keep a device from others."""
        steps_done = slot.status.steps_done if slot.status else 0
        if slot.over_since is None or slot.over_since[1] != steps_done:
            slot.over_since = (now_s, steps_done)
        # An automation that misses heartbeats calls a healthy training crashed. Only one that
        # reports its steps can be told from it.
        doubtful = state.is_crashed() and not steps_done
        if not doubtful and now_s - slot.over_since[0] >= self._linger_seconds:
            self.request(slot, "Its run is over, and its processes were not.", at_once=True)


def without_launcher(slot: Slot) -> list[int]:
    """Return its processes without the launcher, which ends by itself when they have."""
    return [pid for pid in slot.pids if pid != slot.entry.launcher_pid]
