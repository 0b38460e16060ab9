"""Carries out what follows from an ending: another release, counted on the run itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from uuid import UUID

import anyio.to_thread
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.core.endings import Ending, Tally, Verdict, judge
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.core.models import Training
from xonar_prefect.core.out_of_memory import Shortage
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import Claims

_logger = logging.getLogger(__name__)

_COUNTERS = {
    "requeues": labels.REQUEUES,
    "out_of_memory": labels.OUT_OF_MEMORY,
    "beside_offenders": labels.BESIDE_OFFENDERS,
    "failed_launches": labels.FAILED_LAUNCHES,
}


def tally_of(run_labels: Mapping[str, object]) -> Tally:
    """Return what a run has been through, as its labels tell."""
    return Tally(**{name: _number(run_labels.get(label)) for name, label in _COUNTERS.items()})


def with_history(training: Training, run_labels: Mapping[str, object]) -> Training:
    """Return the training with what earlier releases of it have taught: needs more, or be alone."""
    floor = _number(run_labels.get(labels.MEMORY_FLOOR_MIB))
    request = max(training.memory_request_mib or 0, floor) or None
    alone = bool(run_labels.get(labels.ALONE))
    return replace(training, memory_request_mib=request, exclusive=training.exclusive or alone)


def _number(value: object) -> int:
    try:
        return max(0, int(str(value)))
    except ValueError:  # absent, or written by somebody else
        return 0


class Requeueing:
    """Decides on the endings of this worker's releases and puts runs back where that is right.

    Args:
        client: Of the Prefect server.
        claims: The only way in which a run's state is changed.
        store: Where memory peaks are raised.
        clock: The time, seconds since the epoch.
        max_requeues_of: How often a run may be started again after the infrastructure killed it.
        first_pause_seconds: How long it waits then, at first.
    """

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        store: Store,
        *,
        clock: Callable[[], float],
        max_requeues_of: Callable[[FlowRun], Awaitable[int]],
        first_pause_seconds: float = 10.0,
    ) -> None:
        self._client = client
        self._claims = claims
        self._store = store
        self._clock = clock
        self._max_requeues_of = max_requeues_of
        self._first_pause_seconds = first_pause_seconds

    async def judge(self, flow_run: FlowRun, ending: Ending) -> Verdict:
        """Decide what follows from an ending, and count it on the run."""
        verdict = judge(
            ending,
            tally_of(flow_run.labels),
            await self._max_requeues_of(flow_run),
            first_pause_seconds=self._first_pause_seconds,
        )
        counted: dict[str, bool | int | float | str] = {
            label: getattr(verdict.tally, name) for name, label in _COUNTERS.items()
        }
        counted = {label: count for label, count in counted.items() if count}
        counted[labels.LAST_ENDING] = ending.cause.value
        if verdict.alone:
            counted[labels.ALONE] = True
        # Before the state is written: a worker that dies in between counts once too often, which
        # is bounded; the other way round it would count too seldom, which is not.
        await self._client.update_flow_run_labels(flow_run.id, counted)
        return verdict

    async def raise_memory(
        self, entry: LedgerEntry, run_id: UUID, shortage: Shortage, key: str | None
    ) -> None:
        """Have this training, and its kind, be given more than it had."""
        peak = shortage.raised_peak_mib
        if peak is None:
            return
        await self._client.update_flow_run_labels(run_id, {labels.MEMORY_FLOOR_MIB: peak})
        await self.raise_peak(entry, key, peak)

    async def raise_peak(self, entry: LedgerEntry, key: str | None, peak_mib: int) -> None:
        """Raise the memory peak of a kind; where it is not profiled there is none to raise."""
        kind = key or entry.profile_key
        if kind is None or "+" in kind:  # several tasks: whose peak it was is unknown
            return
        try:
            await anyio.to_thread.run_sync(
                self._store.raise_peak, kind, entry.device_model, peak_mib
            )
        except StoreError as error:
            _logger.warning("The memory peak of %s could not be raised: %s", entry.name, error)

    async def again(self, flow_run: FlowRun, verdict: Verdict) -> bool:
        """Put a run back into the queue; False when it is not to be had any more."""
        not_before = None
        if verdict.pause_seconds:
            not_before = datetime.fromtimestamp(self._clock() + verdict.pause_seconds, timezone.utc)
        requeued = await self._claims.requeue(flow_run, verdict.sentence, not_before=not_before)
        if requeued:
            _logger.warning("%r: %s", flow_run.name, verdict.sentence)
        return requeued
