"""After a restart: adopt what lives, conclude what died, put back what was only claimed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import anyio.to_thread
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.errors import JobVariableError
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.store import Store
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.processes import ProcessTrees, lives
from xonar_prefect.worker.slots import Slots

_RELEASES = 200
_LEFT_BY_A_CLAIM = [StateType.PENDING, StateType.CANCELLING]

_logger = logging.getLogger(__name__)


class Recovery:
    """Brings slots and reality together at the start of a worker."""

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        slots: Slots,
        store: Store,
        *,
        worker: str,
        pool: str,
        host: str | None = None,
        training_of: Callable[[FlowRun], Awaitable[Training]],
    ) -> None:
        self._client = client
        self._claims = claims
        self._slots = slots
        self._store = store
        self._worker = worker
        self._pool = pool
        self._host = host
        self._training_of = training_of

    async def run(self) -> None:
        """Adopt, conclude and put back; safe to be repeated."""
        trees = await anyio.to_thread.run_sync(ProcessTrees().scan)
        entries = await anyio.to_thread.run_sync(self._open_entries)
        known = await anyio.to_thread.run_sync(
            lambda: self._store.entries(_RELEASES, worker=self._worker)
        )
        for entry in entries:
            if entry.run_id not in self._slots:
                await self._recover(entry, trees.get(entry.run_directory, []), known)
        await self.put_back_orphans()

    def _open_entries(self) -> tuple[LedgerEntry, ...]:
        # The same name may belong to workers of other pools, and on other hosts.
        return self._store.open_entries(self._worker, pool=self._pool, host=self._host)

    async def _recover(
        self, entry: LedgerEntry, pids: list[int], known: Sequence[LedgerEntry]
    ) -> None:
        flow_run = await self._flow_run(entry.run_id)
        alive = bool(pids) or lives(entry.launcher_pid, entry.launcher_started_ticks, entry.boot_id)
        # It may have been launched, and even have ended, before that could be written down.
        directory = RunDirectory(Path(entry.run_directory))
        has_run = flow_run is not None and flow_run.state_type is not StateType.PENDING
        died = directory.is_launched and has_run
        if alive or died or directory.exit_file.exists() or entry.launcher_pid is not None:
            # Living or dead: supervision takes it from here, and concludes it when it has ended.
            if entry.state is SlotState.RESERVED:
                entry = replace(entry, state=SlotState.RUNNING)
            slot = self._slots.adopt(entry, await self._training(entry, flow_run))
            slot.pids = pids
            slot.measured_beside_partner = was_beside_another(entry, known)
            _logger.info("Adopted %r, %s.", entry.name, "running" if alive else "ended meanwhile")
            return
        # Claimed, but never launched: it goes back into the queue.
        if flow_run is not None:
            await self._claims.give_back(flow_run, "Its worker restarted before it was launched.")
        await anyio.to_thread.run_sync(self._store.record, replace(entry, state=SlotState.ENDED))

    async def _training(self, entry: LedgerEntry, flow_run: FlowRun | None) -> Training:
        try:
            if flow_run is not None:
                return await self._training_of(flow_run)
        except (ObjectNotFound, JobVariableError) as error:
            # Its flow was deleted or its pool's template changed; it runs all the same.
            _logger.warning("Little is known of %r: %s", entry.name, error)
        return Training(run_id=entry.run_id, name=entry.name, submitted_at_s=0.0)

    async def put_back_orphans(self) -> None:
        """Put back what this worker claimed and has no slot for: to mark it, or before it died.

        What was cancelled after such a claim waits, as Cancelling, for whoever had claimed it.
        """
        left = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_LEFT_BY_A_CLAIM))
            ),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[self._pool])),
        )
        for flow_run in left:
            if str(flow_run.id) in self._slots:
                continue
            is_cancelled = flow_run.state_type is StateType.CANCELLING
            if is_cancelled or self._claims.is_ours(flow_run.state):
                await self._claims.give_back(
                    flow_run,
                    "Its worker claimed it and could not start it.",
                    # It was claimed to be marked only, which those who explain holds do not repeat.
                    keeps_labels=labels.tell_of_hold(flow_run.labels),
                    # It may have been released since the list was read.
                    unless=lambda run_id=str(flow_run.id): run_id in self._slots,  # type: ignore[misc]
                )

    async def _flow_run(self, run_id: str) -> FlowRun | None:
        try:
            return await self._client.read_flow_run(UUID(run_id))
        except ObjectNotFound:
            return None


def was_beside_another(entry: LedgerEntry, known: Sequence[LedgerEntry]) -> bool:
    """Tell whether another training was on a device of this one at any time until now."""
    for other in known:
        if other.run_id == entry.run_id or not set(other.devices) & set(entry.devices):
            continue
        if other.launched_at_s is None and other.state is SlotState.ENDED:
            continue  # it never came
        began_s = entry.launched_at_s or entry.reserved_at_s
        if other.ended_at_s is None or other.ended_at_s > began_s:
            return True
    return False
