"""`xonar queue`: who waits and why, who runs and beside whom."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from xonar_prefect.cli.output import AsJson, device, duration, print_json, print_table, say
from xonar_prefect.cli.residents import LocalTraining, local_trainings
from xonar_prefect.cli.server import connected, existing_xonar_pool, xonar_pools

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, WorkPool

    from xonar_prefect.store import Store

_SHOWN_HELD = 100


async def queue(*, pool: str | None = None, json: AsJson = False) -> None:
    """Show who waits and why, and who runs beside whom.

    Example: `xonar queue --pool gpu-box`

    Args:
        pool: Only this work pool; by default all of type xonar.
        json: Print JSON.
    """
    from xonar_prefect.settings import load_settings
    from xonar_prefect.store import Store

    with Store.open(load_settings().effective_store_url) as store:
        local = {each.entry.run_id: each for each in local_trainings(store.open_entries())}
        async with connected() as client:
            pools = [await existing_xonar_pool(client, pool)] if pool else await xonar_pools(client)
            shown = [await _pool(client, store, each, local) for each in pools]
    if json:
        print_json(shown)
        return
    if not shown:
        say("There is no work pool of type xonar; create one with `xonar pool create NAME`.")
    for each in shown:
        _print(each)


async def _pool(
    client: PrefectClient, store: Store, pool: WorkPool, local: Mapping[str, LocalTraining]
) -> dict[str, Any]:
    from prefect.client.schemas.objects import WorkerStatus

    from xonar_prefect.core.models import Limits
    from xonar_prefect.worker.wiring import watched_queue

    picture = watched_queue(client, store, pool.name)
    await picture.renew()
    reading = picture.reading(Limits(), running=(), unfinished=())
    in_order = sorted(reading.trainings.values(), key=lambda training: training.queue_position)
    workers = await client.read_workers_for_work_pool(pool.name)
    held = [
        {
            **_held(reading.flow_runs[training.run_id]),
            "position": position,
            "priority": training.priority,
            "queue": training.queue,
            "waiting_s": max(0.0, time.time() - training.submitted_at_s),
            "profile_key": training.profile_key,
        }
        for position, training in enumerate(in_order, start=1)
    ]
    return {
        "pool": pool.name,
        "paused": pool.is_paused,
        "workers_online": [each.name for each in workers if each.status == WorkerStatus.ONLINE],
        "held": held,
        "refused": [
            {"run_id": run_id, "name": refuse.training.name, "reason": refuse.reason}
            for run_id, refuse in reading.refusals.items()
        ],
        "coming_back": [_coming_back(run) for run in await _pausing(client, pool.name)],
        "running": [_running(run, local) for run in await _occupying(client, pool.name)],
    }


async def _occupying(client: PrefectClient, pool: str) -> list[FlowRun]:
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        WorkPoolFilter,
        WorkPoolFilterName,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    occupying = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=occupying))
        ),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        sort=FlowRunSort.START_TIME_ASC,
    )


async def _pausing(client: PrefectClient, pool: str) -> list[FlowRun]:
    """Read the runs that were put back into the queue and are not due yet."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterNextScheduledStartTime,
        FlowRunFilterState,
        FlowRunFilterStateName,
        WorkPoolFilter,
        WorkPoolFilterName,
    )
    from prefect.client.schemas.sorting import FlowRunSort

    from xonar_prefect.worker.claims import AWAITING_GPU

    now = datetime.now(timezone.utc)

    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(name=FlowRunFilterStateName(any_=[AWAITING_GPU])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(after_=now),
        ),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
    )


def _coming_back(run: FlowRun) -> dict[str, Any]:
    due = run.next_scheduled_start_time
    return {
        **_held(run),
        "due_in_s": None if due is None else max(0.0, due.timestamp() - time.time()),
    }


def _held(run: FlowRun) -> dict[str, Any]:
    from xonar_prefect.worker.explaining import held_because

    code, reason = held_because(run)
    return {**_labelled(run), "reason_code": code, "reason": reason}


def _labelled(run: FlowRun) -> dict[str, Any]:
    from xonar_prefect.worker import labels

    return {
        "run_id": str(run.id),
        "name": run.name,
        "state": run.state_name,
        "reason_code": run.labels.get(labels.REASON_CODE),
        "reason": run.labels.get(labels.REASON),
    }


def _running(run: FlowRun, local: Mapping[str, LocalTraining]) -> dict[str, Any]:
    """Describe a running training: from this host's ledger, elsewhere from its labels."""
    from xonar_prefect.worker import labels

    training = local.get(str(run.id))
    if training is not None:
        return {**training.as_json(), **_labelled(run), "progress": training.steps}
    slowdown = run.labels.get(labels.PREDICTED_SLOWDOWN)
    return {
        **_labelled(run),
        "devices": _names(run.labels.get(labels.DEVICES)),
        "partners": _names(run.labels.get(labels.PARTNER)),
        "predicted_slowdown": float(slowdown) if slowdown else None,
        "progress": None,
    }


def _names(label: object) -> list[str]:
    return [name for name in str(label or "").split(", ") if name]


def _print(pool: dict[str, Any]) -> None:
    if not pool["workers_online"]:
        say(
            f"No worker of pool {pool['pool']!r} is online; start one with "
            f"`xonar worker start --pool {pool['pool']}`."
        )
    if pool["paused"]:
        say(
            f"Pool {pool['pool']!r} is paused; release its trainings with "
            f"`prefect work-pool resume {pool['pool']}`."
        )
    print_table(
        f"Running in {pool['pool']}",
        ["training", "state", "device", "partner", "predicted slowdown|", "steps|"],
        [
            (
                each["name"],
                each["state"],
                ", ".join(device(each_device) for each_device in each["devices"]) or None,
                ", ".join(each["partners"]) or None,
                None if each["predicted_slowdown"] is None else f"{each['predicted_slowdown']:.2f}",
                each["progress"],
            )
            for each in pool["running"]
        ],
        empty=f"Nothing runs in pool {pool['pool']!r}.",
    )
    shown = pool["held"][:_SHOWN_HELD]
    print_table(
        f"Held in {pool['pool']}",
        ["|", "training", "waiting|", "reason", ""],
        [
            (
                str(each["position"]),
                each["name"],
                duration(each["waiting_s"]),
                each["reason_code"],
                each["reason"],
            )
            for each in shown
        ],
        empty=f"Nothing is held in pool {pool['pool']!r}.",
    )
    if len(pool["held"]) > len(shown):
        say(f"... and {len(pool['held']) - len(shown)} more; `--json` has them all.")
    for each in pool["coming_back"]:
        say(f"{each['name']} comes back in {duration(each['due_in_s'])}: {each['reason']}")
    for each in pool["refused"]:
        say(f"{each['name']} cannot start: {each['reason']}")
