"""What has become of every training of the queue, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_AT_ONCE = 200  # the server's limit of one reading


class Stage(str, Enum):
    """Where a training is on its way."""

    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One training, as Prefect, the worker's ledger and its own report show it.

    Attributes:
        run_id: Id of the flow run.
        name: Its name in the queue.
        stage: Where it is.
        state: Name of its Prefect state.
        completed: It ended well.
        reason: Why it is held or was released, in the worker's words.
        held_reason: Why it was held last; None when it never was, as far as was seen.
        devices: Its devices.
        partners: Names of the trainings on the same devices now.
        steps_done: Steps finished; None before it reports.
        steps_total: Steps in all, where known.
        profiling: Its profile is being taken.
        peak_memory_mib: Its own peak so far.
        submitted_at_s: When it was submitted.
        released_at_s: When the worker claimed it for a device.
        ended_at_s: When it ended.
        settled: Its slot is free again, so that the worker has noted its windows.
        device_model: Model of its devices.
        profile_key: Its kind.
        co_runs: Its windows alone and beside partners.
    """

    run_id: str
    name: str
    stage: Stage
    state: str
    completed: bool = False
    reason: str | None = None
    held_reason: str | None = None
    devices: tuple[str, ...] = ()
    partners: tuple[str, ...] = ()
    steps_done: int | None = None
    steps_total: int | None = None
    profiling: bool = False
    peak_memory_mib: int | None = None
    submitted_at_s: float
    released_at_s: float | None = None
    ended_at_s: float | None = None
    settled: bool = False
    device_model: str | None = None
    profile_key: str | None = None
    co_runs: tuple[CoRun, ...] = ()


class Watch:
    """Looks at the trainings of one queue, again and again."""

    def __init__(self, client: SyncPrefectClient, store: Store, names: Mapping[str, str]) -> None:
        self._client = client
        self._store = store
        self._names = names
        self._held_reasons: dict[str, str] = {}

    def look(self) -> tuple[TrainingView, ...]:
        """Return every training, in the order of the queue."""
        runs = {str(run.id): run for run in self._read_runs()}
        entries: dict[str, LedgerEntry] = {}
        for entry in self._store.entries(limit=4 * len(self._names)):
            entries.setdefault(entry.run_id, entry)  # the newest of each comes first
        ours = {
            run_id: entries[run_id]
            for run_id in self._names
            if run_id in entries and run_id in runs
        }
        living = {each for each, entry in ours.items() if _is_living(runs[each], entry)}
        return tuple(
            self._view(run_id, runs[run_id], ours, living)
            for run_id in self._names
            if run_id in runs
        )

    def _read_runs(self) -> Iterable[FlowRun]:
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        ids = [UUID(run_id) for run_id in self._names]
        for first in range(0, len(ids), _AT_ONCE):
            some = ids[first : first + _AT_ONCE]
            wanted = FlowRunFilter(id=FlowRunFilterId(any_=some))
            yield from self._client.read_flow_runs(flow_run_filter=wanted, limit=len(some))

    def _view(
        self, run_id: str, run: FlowRun, entries: Mapping[str, LedgerEntry], living: set[str]
    ) -> TrainingView:
        from xonar_prefect.worker import labels
        from xonar_prefect.worker.explaining import held_because

        entry = entries.get(run_id)
        status = RunDirectory(Path(entry.run_directory)).read_status() if entry else None
        stage = _stage(run, entry, status)
        reason = run.labels.get(labels.REASON)
        if stage is Stage.HELD:
            _, reason = held_because(run)
        if stage is Stage.HELD and reason:
            self._held_reasons[run_id] = str(reason)
        beside = _beside(entries, run_id) & living if run_id in living else frozenset()
        return TrainingView(
            run_id=run_id,
            name=self._names[run_id],
            stage=stage,
            state=run.state_name or "Unknown",
            completed=run.state is not None and run.state.is_completed(),
            reason=None if reason is None else str(reason),
            held_reason=self._held_reasons.get(run_id),
            devices=entry.devices if entry else (),
            partners=tuple(self._names[each] for each in self._names if each in beside),
            steps_done=status.steps_done if status else None,
            steps_total=status.steps_total if status else None,
            profiling=status is not None and status.phase == "profiling",
            peak_memory_mib=status.peak_memory_mib if status else None,
            submitted_at_s=_seconds(run.created) or 0.0,
            released_at_s=entry.reserved_at_s if entry else None,
            ended_at_s=_seconds(run.end_time),
            settled=entry is None or entry.state is SlotState.ENDED,
            device_model=entry.device_model if entry else None,
            profile_key=entry.profile_key if entry else None,
            co_runs=entry.co_runs if entry else (),
        )


def _stage(run: FlowRun, entry: LedgerEntry | None, status: Status | None) -> Stage:
    if run.state is not None and run.state.is_final():
        return Stage.ENDED
    if entry is None or entry.state is SlotState.ENDED:  # ended and requeued: held again
        return Stage.HELD
    return Stage.RUNNING if status is not None and status.steps_done else Stage.STARTING


def _is_living(run: FlowRun, entry: LedgerEntry) -> bool:
    """Tell whether it computes or is about to; one that has ended may drain for a while."""
    final = run.state is not None and run.state.is_final()
    return not final and entry.state in {SlotState.RESERVED, SlotState.RUNNING}


def _beside(entries: Mapping[str, LedgerEntry], run_id: str) -> frozenset[str]:
    devices = set(entries[run_id].devices)
    return frozenset(
        other
        for other, entry in entries.items()
        if other != run_id and devices & set(entry.devices)
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
