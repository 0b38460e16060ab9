"""Builds and wires the parts of one worker: the only place that does."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.policies import Policy
from xonar_prefect.devices import discover
from xonar_prefect.errors import JobVariableError, SettingsError
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.concluding import Concluding
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.device_health import DeviceHealth
from xonar_prefect.worker.device_memory import MemoryWatch
from xonar_prefect.worker.device_watch import DeviceWatch
from xonar_prefect.worker.disk import HomeDisk
from xonar_prefect.worker.dispatch import Dispatch, utc_now
from xonar_prefect.worker.exits import ExitWatch
from xonar_prefect.worker.explaining import Explanations
from xonar_prefect.worker.fail_fast import FailFast, state_of
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.host import HostWatch
from xonar_prefect.worker.housekeeping import Housekeeping, housekeeping
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.launch_failures import LaunchFailures
from xonar_prefect.worker.learning import Learning
from xonar_prefect.worker.locks import Locks
from xonar_prefect.worker.orders import Orders
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.queue_pages import QueuePages
from xonar_prefect.worker.queue_picture import QueuePicture
from xonar_prefect.worker.recovery import Recovery
from xonar_prefect.worker.requeueing import Requeueing
from xonar_prefect.worker.slots import Slots
from xonar_prefect.worker.starting import Starting
from xonar_prefect.worker.stopping import Stopping
from xonar_prefect.worker.submission import Submission
from xonar_prefect.worker.supervision import Supervision
from xonar_prefect.worker.telling import Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which worker of which pool this is.

    Attributes:
        name: Its name, under which its next life finds what this one started.
        pool: Its work pool.
        queues: The queues of the pool it serves; empty for all.
        training_limit: Trainings that it runs at once; None for no limit.
        observe_only: It decides and explains, but lets no trainings share a device.
    """

    name: str
    pool: str
    queues: frozenset[str]
    training_limit: int | None
    observe_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a worker that was set up consists of; `close` gives back what they hold."""

    locks: Locks
    devices: DeviceWatch
    health: DeviceHealth
    slots: Slots
    claims: Claims
    picture: QueuePicture
    dispatch: Dispatch
    submission: Submission
    starting: Starting
    in_flight: LaunchesInFlight
    telling: Telling
    learning: Learning
    supervision: Supervision
    stopping: Stopping
    launch_failures: LaunchFailures
    recovery: Recovery
    exits: ExitWatch
    disk: HomeDisk
    housekeeping: Housekeeping
    close: Callable[[], None]


def build(
    identity: Identity,
    settings: XonarSettings,
    policy: Policy,
    client: PrefectClient,
    *,
    submit: Callable[[Sequence[FlowRun]], Awaitable[None]],
    wake_up: Callable[[], None],
) -> Parts:
    """Take the locks, open devices and store, and wire the parts; all of it or nothing.

    Args:
        identity: Which worker this is.
        settings: Its settings.
        policy: Who orders its trainings.
        client: Of the Prefect server.
        submit: Starts released runs.
        wake_up: Called when a process has ended.

    Raises:
        XonarError: Something that the user must mend, in one sentence.
    """
    with ExitStack() as stack:
        locks = Locks(settings.lock_directory)
        stack.callback(locks.close)
        locks.take_name(identity.pool, identity.name)
        accelerators = discover(
            settings.devices,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            cpu_cores=settings.cpu_devices,
        )
        stack.callback(accelerators.close)
        _make_home(settings)
        store = stack.enter_context(Store.open(settings.effective_store_url))
        host = socket.gethostname()
        slots = Slots(store, identity.name, utc_now, pool=identity.pool, host=host)
        disk = HomeDisk(
            settings.home,
            least_free_mib=settings.least_free_disk_mib,
            least_free_inodes=settings.least_free_inodes,
        )
        # Two hosts may have workers of one name: neither must take the other's claims for its own.
        claims = Claims(client, f"{identity.name} on {host}")
        deployments = Deployments(client, time.monotonic)
        held_runs = HeldRuns(client, store, identity.pool, deployments)
        in_flight = LaunchesInFlight()
        picture = QueuePicture(
            QueuePages(client, identity.pool, identity.queues),
            held_runs,
            deployments,
            ours=lambda: [slot.entry.run_id for slot in slots],
            whole_seconds=settings.whole_queue_seconds,
            step_aside=in_flight.step_aside,
            clock=time.monotonic,
        )
        explanations = Explanations(
            client,
            claims,
            mark_after_seconds=settings.mark_after_seconds,
            mark_again_seconds=settings.mark_again_seconds,
            clock=utc_now,
        )
        telling = Telling(
            explanations,
            slots,
            picture,
            visible_held=settings.visible_held,
            step_aside=in_flight.step_aside,
        )
        learning = Learning(client, store, utc_now)
        limits = replace(settings.limits(), observe_only=identity.observe_only)
        quarantines = Quarantines(store, host, utc_now)
        devices = DeviceWatch(
            accelerators,
            locks,
            owner=f"worker {identity.name!r} of pool {identity.pool!r}",
            quarantines=quarantines,
            slots=slots,
        )
        released = store.open_entries(identity.name, pool=identity.pool, host=host)
        devices.begin(device for entry in released for device in entry.devices)
        host_watch = HostWatch(
            disk,
            on_devices=devices.count * settings.max_trainings_per_gpu,
            without_device=settings.max_runs_without_device,
            headroom_mib=settings.host_headroom_mib,
        )
        dispatch = Dispatch(
            policy=policy,
            read_devices=devices.read,
            store=store,
            slots=slots,
            picture=picture,
            held_runs=held_runs,
            host=host_watch,
            telling=telling,
            in_flight=in_flight,
            submit=submit,
            limits=limits,
            training_limit=identity.training_limit,
            max_starting=settings.max_starting,
            runs_without_device=settings.max_runs_without_device,
            runs_directory=settings.home / "runs",
            clock=utc_now,
        )
        starting = Starting(
            accelerators=accelerators,
            locks=locks,
            store=store,
            slots=slots,
            host=host_watch,
            deployments=deployments,
            in_flight=in_flight,
            clock=utc_now,
        )
        submission = Submission(
            client,
            pool=identity.pool,
            worker=identity.name,
            claims=claims,
            picture=picture,
            deployments=deployments,
            held_runs=held_runs,
            slots=slots,
            in_flight=in_flight,
            telling=telling,
        )
        requeueing = Requeueing(
            client,
            claims,
            store,
            clock=utc_now,
            max_requeues_of=_max_requeues(held_runs, settings.max_requeues),
            first_pause_seconds=settings.requeue_pause_seconds,
        )
        stopping = Stopping(
            client,
            slots,
            clock=utc_now,
            grace_seconds=settings.stop_grace_seconds,
            linger_seconds=settings.linger_seconds,
        )
        supervision = Supervision(
            slots,
            learning,
            Concluding(client, claims, requeueing, slots, limits=limits),
            stopping,
            clock=utc_now,
            stop_grace_seconds=settings.stop_grace_seconds,
            on_profile=dispatch.renew_profiles,
        )
        health = DeviceHealth(
            devices,
            slots,
            quarantines,
            orders=Orders(settings.home, host),
            fail_fast=FailFast(
                slots,
                quarantines,
                partial(state_of, client),
                rule=settings.fail_fast_rule(),
                clock=utc_now,
            ),
            memory=MemoryWatch(slots, store, limits, on_profile=dispatch.renew_profiles),
            clock=utc_now,
        )
        recovery = Recovery(
            client,
            claims,
            slots,
            store,
            worker=identity.name,
            pool=identity.pool,
            host=host,
            training_of=held_runs.training_of,
        )
        exits = ExitWatch(wake_up)
        stack.callback(exits.close)
        return Parts(
            locks=locks,
            devices=devices,
            health=health,
            slots=slots,
            claims=claims,
            picture=picture,
            dispatch=dispatch,
            submission=submission,
            starting=starting,
            in_flight=in_flight,
            telling=telling,
            learning=learning,
            supervision=supervision,
            stopping=stopping,
            launch_failures=LaunchFailures(
                client,
                claims,
                requeueing,
                slots,
                quarantines,
                clock=utc_now,
                first_pause_seconds=settings.requeue_pause_seconds,
            ),
            recovery=recovery,
            exits=exits,
            disk=disk,
            housekeeping=housekeeping(client, store, settings, pool=identity.pool, clock=utc_now),
            close=stack.pop_all().close,
        )


def watched_queue(client: PrefectClient, store: Store, pool: str) -> QueuePicture:
    """Return the picture of a pool's queue for somebody who only looks."""
    deployments = Deployments(client, time.monotonic)

    async def at_once() -> None:
        """There is nothing to step aside for."""

    return QueuePicture(
        QueuePages(client, pool, frozenset()),
        HeldRuns(client, store, pool, deployments),
        deployments,
        ours=tuple,
        whole_seconds=math.inf,
        step_aside=at_once,
        clock=time.monotonic,
    )


def _max_requeues(held_runs: HeldRuns, default: int) -> Callable[[FlowRun], Awaitable[int]]:
    async def max_requeues(flow_run: FlowRun) -> int:
        try:
            wanted = (await held_runs.variables_of(flow_run)).max_requeues
        except (JobVariableError, ObjectNotFound):  # changed since it was launched
            return default
        return default if wanted is None else wanted

    return max_requeues


def _make_home(settings: XonarSettings) -> None:
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"The directory {settings.home} cannot be made ({error.strerror}); set XONAR_HOME to "
            "one that this user may write to."
        ) from error
