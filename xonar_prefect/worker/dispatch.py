"""Take a snapshot, let the policy decide, hand over what is released."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import anyio.to_thread
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.core.decisions import Release
from xonar_prefect.core.interference import InterferenceModel, KeptModel, Load
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.memory import request_mib
from xonar_prefect.core.models import Limits, Snapshot
from xonar_prefect.core.policies import Policy
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store
from xonar_prefect.worker.held_runs import HeldRuns
from xonar_prefect.worker.host import HostWatch
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.limits import Occupant
from xonar_prefect.worker.memory_peaks import MemoryPeaks
from xonar_prefect.worker.queue_picture import QueuePicture, QueueReading
from xonar_prefect.worker.slots import Slot, Slots
from xonar_prefect.worker.telling import Telling

_FALLBACK_MODEL = "none"
# A training that reports nothing counts as starting for so long.
_START_SECONDS = 30.0

_logger = logging.getLogger(__name__)


class Dispatch:
    """Decides for one worker."""

    def __init__(
        self,
        *,
        policy: Policy,
        read_devices: Callable[[], Awaitable[tuple[DeviceReading, ...]]],
        store: Store,
        slots: Slots,
        picture: QueuePicture,
        held_runs: HeldRuns,
        host: HostWatch,
        telling: Telling,
        in_flight: LaunchesInFlight,
        submit: Callable[[Sequence[FlowRun]], Awaitable[None]],
        limits: Limits,
        training_limit: int | None,
        max_starting: int,
        runs_without_device: int,
        runs_directory: Path,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._read_devices = read_devices
        self._store = store
        self._slots = slots
        self._picture = picture
        self._held_runs = held_runs
        self._host = host
        self._peaks = MemoryPeaks(store)
        self._telling = telling
        self._in_flight = in_flight
        self._submit = submit
        self._limits = limits
        self._training_limit = training_limit
        self._max_starting = max_starting
        self._runs_without_device = runs_without_device
        self._runs_directory = runs_directory
        self._clock = clock
        self._interference = KeptModel()

    async def decide(self) -> list[FlowRun]:
        """Decide once for every held run, and hand over what is released.

        Nothing is asked of the server. Who is told what was decided is told later.

        Returns:
            The flow runs that were released.
        """
        queue = self._picture.reading(
            self._limits,
            running=_occupants(self._slots.holding),
            unfinished=_occupants(self._slots),
        )
        snapshot = await self._snapshot(queue)
        decisions = self._policy.decide(snapshot)
        releases = [decision for decision in decisions if isinstance(decision, Release)]
        released = await self._release(releases, snapshot, queue)
        self._telling.decided(decisions, releases[: len(released)], queue)
        return released

    async def renew_profiles(self, slot: Slot) -> None:
        """Let a running training's new profile count: for its reservation and for its partners."""
        slot.training = await self._held_runs.renewed(slot.training)
        request = request_mib(slot.training, slot.entry.device_model, self._limits)
        await self._slots.advance(slot, request_mib=request, profile_key=slot.training.profile_key)
        await self._picture.convert_again()

    async def _snapshot(self, queue: QueueReading) -> Snapshot:
        free_worker_slots = None
        if self._training_limit is not None:
            free_worker_slots = max(0, self._training_limit - len(self._slots.holding))
        limits = replace(
            queue.limits,
            free_worker_slots=free_worker_slots,
            free_starts=max(0, self._max_starting - self._starting()),
            free_slots_without_device=max(
                0, self._runs_without_device - self._slots.without_device()
            ),
        )
        devices = self._slots.devices(await self._read_devices())
        host = await anyio.to_thread.run_sync(self._host.read, self._slots.holding)
        await self._peaks.note(self._slots, host)
        stored = await anyio.to_thread.run_sync(self._store.profiles)
        snapshot = Snapshot(
            now_s=self._clock(),
            held=tuple(
                training
                for run_id, training in queue.trainings.items()
                if run_id not in self._slots
            ),
            devices=devices,
            host=host,
            observations=await anyio.to_thread.run_sync(self._store.observations),
            profiles=tuple(each.profile for each in stored),
            durations=await anyio.to_thread.run_sync(self._store.mean_durations),
            limits=limits,
        )
        return replace(snapshot, interference=self._interference.of(snapshot))

    def _starting(self) -> int:
        """Return how many trainings were released and have not begun to train."""
        since = self._clock() - _START_SECONDS
        return sum(
            slot.status is None
            and slot.entry.state in (SlotState.RESERVED, SlotState.RUNNING)
            and slot.entry.reserved_at_s > since
            for slot in self._slots
        )

    async def _release(
        self, releases: Sequence[Release], snapshot: Snapshot, queue: QueueReading
    ) -> list[FlowRun]:
        if not releases:
            return []
        model_of = {device.id: device.model for device in snapshot.devices}
        interference = snapshot.interference or InterferenceModel.of(snapshot)
        released: list[FlowRun] = []
        for release in releases:
            model = model_of[release.devices[0]] if release.devices else _FALLBACK_MODEL
            try:
                slot = await self._slots.reserve(release, model, self._runs_directory)
            except StoreError as error:
                _logger.error("Nothing more is released: %s", error)
                self._host.disk.doubt()  # should it be the reason, it is shown as one
                break
            self._in_flight.begin(release.training.run_id)
            for each in (slot, *self._slots.partners(slot)):
                self._expect(each, interference)
            released.append(queue.flow_runs[release.training.run_id])
        self._picture.released([str(flow_run.id) for flow_run in released])
        await self._submit(released)
        return released

    def _expect(self, slot: Slot, interference: InterferenceModel) -> None:
        """Note what is predicted for a training beside the partners it has now."""
        model = slot.entry.device_model
        partners = self._slots.partners(slot)
        predicted = interference.predict(
            Load.of(slot.training, model),
            [Load.of(partner.training, model) for partner in partners],
            model,
        )
        keys = {partner.entry.run_id: partner.training.profile_key or "" for partner in partners}
        slot.meter.expect(keys, predicted)


def _occupants(slots: Iterable[Slot]) -> list[Occupant]:
    return [
        Occupant(
            run_id=slot.entry.run_id, queue=slot.training.queue, deployment=slot.training.deployment
        )
        for slot in slots
    ]


def utc_now() -> float:
    """Return the time in seconds since the epoch."""
    return datetime.now(timezone.utc).timestamp()
