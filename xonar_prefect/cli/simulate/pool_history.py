"""Reads what a pool has recorded: its runs from Prefect, their releases from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from xonar_prefect.cli.simulate.options import Options, parse_gpus
from xonar_prefect.cli.simulate.recorded import recorded_run
from xonar_prefect.cli.simulate.scenario import Scenario, devices_of, limits_of, scenario_of
from xonar_prefect.core.models import Device, Profile
from xonar_prefect.core.simulation import Learnt
from xonar_prefect.core.simulation.assembly import gpus
from xonar_prefect.core.simulation.history import (
    RecordedRun,
    slowdowns_of,
    submissions_of,
    with_startup,
)
from xonar_prefect.errors import NoHistoryError
from xonar_prefect.files.colocation import Colocations

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

    from xonar_prefect.core.ledger import LedgerEntry

_PAGE = 200
_MOST_ENTRIES = 1_000_000


def from_pool(options: Options) -> Scenario:
    """Build the scenario of a pool's own history.

    Raises:
        NoHistoryError: The pool has no completed run that this store knows.
        ServerUnreachableError: The Prefect server does not answer.
        StoreUnusableError: The store cannot be read.
        WorkPoolError: There is no such pool.
    """
    from xonar_prefect.settings import load_settings
    from xonar_prefect.store import Store
    from xonar_prefect.worker.co_runs import LEAST_STEPS

    pool = options.from_pool or ""
    runs = {str(run.id): run for run in anyio.run(_completed_runs, pool)}
    with Store.open(load_settings().effective_store_url) as store:
        entries: dict[str, LedgerEntry] = {}
        for entry in store.entries(limit=_MOST_ENTRIES):
            entries.setdefault(entry.run_id, entry)  # the newest of each comes first
        observations = store.observations()[::-1]  # the newest of each combination counts
        profiles: dict[str, dict[str, Profile]] = {}
        for stored in store.profiles():
            by_model = profiles.setdefault(stored.profile.key, {})
            by_model[stored.profile.device_model] = stored.profile
    known = {run_id: entries[run_id] for run_id in runs if run_id in entries}
    recorded = [
        _recorded(runs[run_id], entry)
        for run_id, entry in known.items()
        if entry.devices and entry.ended_at_s is not None
    ]
    if not recorded:
        raise NoHistoryError(pool, len(runs))
    submissions, usual = submissions_of(recorded, profiles)
    for each in submissions:
        profiles.setdefault(each.kind, {})
    scenario = scenario_of(
        profiles,
        Colocations(throughputs=slowdowns_of(recorded, profiles, LEAST_STEPS)),
        _devices(options, known.values(), profiles),
        {pool: with_startup(submissions, options.startup)},
        options,
        limits_of(options),
        startup_seconds=options.startup or 0.0,
    )
    scenario = replace(scenario, learnt=Learnt(observations=observations))
    return scenario.with_notes(
        f"{len(recorded)} of {len(runs)} completed runs of the pool are replayed: those whose "
        "release this store knows.",
        f"Starting up took {usual:.1f} s (the median); each training keeps its own."
        if options.startup is None
        else f"Every training starts up in {options.startup:g} s.",
    )


async def _completed_runs(pool: str) -> list[FlowRun]:
    from xonar_prefect.cli.server import connected, existing_xonar_pool

    async with connected() as client:
        await existing_xonar_pool(client, pool)
        return [run async for run in _pages(client, pool)]


async def _pages(client: PrefectClient, pool: str) -> AsyncIterator[FlowRun]:
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    from xonar_prefect.worker.limits import pool_filter

    completed = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
    )
    offset = 0
    while page := await client.read_flow_runs(
        flow_run_filter=completed,
        work_pool_filter=pool_filter(pool),
        sort=FlowRunSort.START_TIME_ASC,
        limit=_PAGE,
        offset=offset,
    ):
        for run in page:
            yield run
        offset += len(page)


def _recorded(run: FlowRun, entry: LedgerEntry) -> RecordedRun:
    submitted = run.expected_start_time or run.created
    return recorded_run(
        entry,
        kind=f"flow {run.flow_id}",
        submitted_at_s=submitted.timestamp() if submitted else None,
    )


def _devices(
    options: Options, entries: Iterable[LedgerEntry], profiles: dict[str, dict[str, Profile]]
) -> tuple[Device, ...]:
    """Return the devices asked for, else those that the releases went to, memory unknown."""
    if options.gpus:
        groups = [parse_gpus(text) for text in options.gpus]
        return devices_of(groups, profiles, options.gpus_per_host)
    used = {device: entry.device_model for entry in entries for device in entry.devices}
    devices: tuple[Device, ...] = ()
    for model, count in sorted(Counter(used.values()).items()):
        devices += gpus(count, model, first=len(devices), per_host=options.gpus_per_host)
    return devices
