"""Take a snapshot, let the policy decide, carry the decisions out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from subprocess import Popen

import anyio
import anyio.to_thread
import httpx
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.core.interference import InterferenceModel, Load
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.memory import request_mib
from xonar_prefect.core.models import (
    Decision,
    Hold,
    Limits,
    Profile,
    ReasonCode,
    Refuse,
    Release,
    Snapshot,
    Training,
)
from xonar_prefect.core.policies import Policy
from xonar_prefect.devices.base import Accelerators, DeviceReading
from xonar_prefect.errors import StoreError
from xonar_prefect.run_directory import Placement
from xonar_prefect.store import Store
from xonar_prefect.worker.configuration import XonarJobConfiguration
from xonar_prefect.worker.explaining import Explanations
from xonar_prefect.worker.held_runs import HeldRuns, QueueReading
from xonar_prefect.worker.host import HostWatch
from xonar_prefect.worker.launching import Launch, free_port, start
from xonar_prefect.worker.locks import Locks
from xonar_prefect.worker.memory_peaks import MemoryPeaks
from xonar_prefect.worker.processes import boot_id, started_ticks
from xonar_prefect.worker.slots import Slot, Slots

# What a process takes on a GPU beside its allocator: the CUDA context and library workspaces.
_CONTEXT_MIB = {"nvidia": 600}
_FALLBACK_MODEL = "none"
_EXPLAIN_SECONDS = 2.0
# A training that reports nothing counts as starting for so long.
_START_SECONDS = 30.0

_logger = logging.getLogger(__name__)


class Dispatch:
    """Decides for one worker, and launches what it decides."""

    def __init__(
        self,
        *,
        policy: Policy,
        accelerators: Accelerators,
        read_devices: Callable[[], Awaitable[tuple[DeviceReading, ...]]],
        locks: Locks,
        store: Store,
        slots: Slots,
        held_runs: HeldRuns,
        host: HostWatch,
        explanations: Explanations,
        submit: Callable[[Sequence[FlowRun]], Awaitable[None]],
        limits: Limits,
        training_limit: int | None,
        max_starting: int,
        runs_without_device: int,
        runs_directory: Path,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._accelerators = accelerators
        self._read_devices = read_devices
        self._locks = locks
        self._store = store
        self._slots = slots
        self._held_runs = held_runs
        self._host = host
        self._peaks = MemoryPeaks(store)
        self._explanations = explanations
        self._submit = submit
        self._limits = limits
        self._training_limit = training_limit
        self._max_starting = max_starting
        self._runs_without_device = runs_without_device
        self._runs_directory = runs_directory
        self._clock = clock
        self._queue: QueueReading | None = None
        self.has_more_to_explain = False

    def queue_is_stale(self) -> None:
        """Have the queue read again before the next decision."""
        self._queue = None

    async def decide(self, *, fresh: bool) -> list[FlowRun]:
        """Decide once for every held run, and act.

        Args:
            fresh: Read the whole queue again, rather than use what is left of the last reading.

        Returns:
            The flow runs that were released.
        """
        if fresh or self._queue is None:
            self._queue = await self._held_runs.read(self._limits)
        queue = self._queue
        snapshot = await self._snapshot(queue)
        decisions = self._policy.decide(snapshot)
        released = await self._release(
            [decision for decision in decisions if isinstance(decision, Release)], snapshot, queue
        )
        await self._explain(decisions, queue)
        return released

    async def launch(
        self, flow_run: FlowRun, configuration: XonarJobConfiguration
    ) -> tuple[Slot, Popen[bytes]]:
        """Start the training of a reserved slot.

        Raises:
            OSError: It could not be started.
        """
        slot = self._slots.get(str(flow_run.id))
        if slot is None:
            raise LookupError(f"Run {flow_run.id} has no reservation; it is not launched.")
        entry = slot.entry
        deployment = await self._held_runs.deployment_of(flow_run)
        placement = Placement(
            run_id=entry.run_id,
            devices=entry.devices,
            device_kind=self._accelerators.kind if entry.devices else "none",
            device_model=entry.device_model,
            entrypoint=deployment.entrypoint if deployment else None,
            gpus=slot.training.gpus,
            memory_request_mib=entry.request_mib,
            memory_limit_mib=self._allocator_limit_mib(entry.request_mib),
            shared=bool(self._slots.partners(slot)),
            known_profiles=await anyio.to_thread.run_sync(
                self._known_profiles, slot.training, entry.device_model
            ),
            rendezvous_port=free_port(),
        )
        devices = self._accelerators.environment(entry.devices, placement.memory_limit_mib)
        threads = self._host.thread_environment(slot.training.cpu_threads, len(entry.devices))
        confined = devices if entry.devices else {"CUDA_VISIBLE_DEVICES": ""}
        launch = Launch(
            run_directory=slot.run_directory,
            placement=placement,
            command=configuration.command,
            environment=configuration.env,
            device_environment={**threads, **confined},
            working_directory=configuration.working_dir,
            processors=self._accelerators.processors(entry.devices) if entry.devices else None,
        )
        with anyio.CancelScope(shield=True):  # what was started is written down
            with self._locks.lent(entry.devices) as descriptors:
                slot.process = process = await start(replace(launch, locks=descriptors))
            await self._slots.advance(
                slot,
                state=SlotState.RUNNING,
                launcher_pid=process.pid,
                launcher_started_ticks=started_ticks(process.pid),
                boot_id=boot_id(),
                launched_at_s=self._clock(),
            )
        return slot, process

    async def renew_profiles(self, slot: Slot) -> None:
        """Let a running training's new profile count: for its reservation and for its partners."""
        slot.training = await self._held_runs.renewed(slot.training)
        request = request_mib(slot.training, slot.entry.device_model, self._limits)
        await self._slots.advance(slot, request_mib=request, profile_key=slot.training.profile_key)
        self.queue_is_stale()

    async def _snapshot(self, queue: QueueReading) -> Snapshot:
        free_worker_slots = None
        if self._training_limit is not None:
            free_worker_slots = max(0, self._training_limit - len(self._slots))
        limits = replace(
            queue.limits,
            free_worker_slots=free_worker_slots,
            free_starts=max(0, self._max_starting - self._starting()),
            free_slots_without_device=max(
                0, self._runs_without_device - self._slots.without_device()
            ),
        )
        devices = self._slots.devices(await self._read_devices())
        host = await anyio.to_thread.run_sync(self._host.read, tuple(self._slots))
        await self._peaks.note(self._slots, host, devices)
        stored = await anyio.to_thread.run_sync(self._store.profiles)
        return Snapshot(
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
            limits=limits,
        )

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
        interference = InterferenceModel.of(snapshot)
        released: list[FlowRun] = []
        for release in releases:
            model = model_of[release.devices[0]] if release.devices else _FALLBACK_MODEL
            try:
                slot = await self._slots.reserve(release, model, self._runs_directory)
            except StoreError as error:
                _logger.error("Nothing more is released: %s", error)
                self._host.disk.doubt()  # should it be the reason, it is shown as one
                break
            self._expect(slot, interference)
            for partner in self._slots.partners(slot):
                self._expect(partner, interference)
            released.append(queue.flow_runs[release.training.run_id])
        # What is left of this reading may serve the next decision: it must not hold them again.
        self._queue = queue.without(frozenset(str(flow_run.id) for flow_run in released))
        await self._submit(released)
        for release, flow_run in zip(releases, released, strict=False):
            await self._quietly(self._explain_release(release, flow_run))
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

    async def _explain_release(self, release: Release, flow_run: FlowRun) -> None:
        partners = [self._slots.get(run_id) for run_id in release.partners]
        names = tuple(partner.entry.name for partner in partners if partner)
        await self._explanations.release(release, flow_run, names)

    async def _explain(self, decisions: Sequence[Decision], queue: QueueReading) -> None:
        begun_s = self._clock()
        self.has_more_to_explain = False
        position = 0
        self._explanations.keep_only(
            frozenset(d.training.run_id for d in decisions if isinstance(d, Hold))
        )
        for run_id, sentence in queue.refusals.items():
            training = Training(run_id=run_id, name=queue.flow_runs[run_id].name, submitted_at_s=0)
            refuse = Refuse(training=training, code=ReasonCode.WRONG_JOB_VARIABLE, reason=sentence)
            await self._quietly(self._explanations.refuse(refuse, queue.flow_runs[run_id]))
            self.queue_is_stale()
        for decision in decisions:
            if self._clock() - begun_s > _EXPLAIN_SECONDS:
                # A slot that becomes free must not wait until a hundred runs are marked.
                self.has_more_to_explain = True
                return
            run_id = decision.training.run_id
            flow_run = queue.flow_runs[run_id]
            if isinstance(decision, Refuse):
                await self._quietly(self._explanations.refuse(decision, flow_run))
                self.queue_is_stale()
            elif isinstance(decision, Hold):
                markable = run_id not in queue.unmarkable
                await self._quietly(
                    self._explanations.hold(
                        decision, flow_run, position=position, markable=markable
                    )
                )
                position += 1

    @staticmethod
    async def _quietly(showing: Awaitable[bool | None]) -> bool:
        """Do not let a failure to explain stop what was decided."""
        try:
            return bool(await showing)
        except httpx.HTTPError as error:
            _logger.warning("A decision could not be shown: %s", error)
            return False

    def _known_profiles(self, training: Training, device_model: str) -> dict[str, Profile]:
        keys = (training.profile_key or "").split("+")
        known = ((key, self._store.profiles_for(key).get(device_model)) for key in keys if key)
        return {key: profile for key, profile in known if profile is not None}

    def _allocator_limit_mib(self, request: int | None) -> int | None:
        """Return the cap of a training's allocator, so that it cannot outgrow its request."""
        if request is None:
            return None
        return max(1, request - _CONTEXT_MIB.get(self._accelerators.kind, 0))


def utc_now() -> float:
    """Return the time in seconds since the epoch."""
    return datetime.now(timezone.utc).timestamp()
