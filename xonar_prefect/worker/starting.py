"""Starts the training of a reserved slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from subprocess import Popen

import anyio
import anyio.to_thread
from prefect.client.schemas.objects import FlowRun

from xonar_prefect.core.endings import may_run_out_of_memory_again
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.models import Profile, Training
from xonar_prefect.devices.base import Accelerators
from xonar_prefect.run_directory import Placement
from xonar_prefect.store import Store
from xonar_prefect.worker.configuration import XonarJobConfiguration
from xonar_prefect.worker.deployments import Deployments
from xonar_prefect.worker.host import HostWatch
from xonar_prefect.worker.in_flight import LaunchesInFlight
from xonar_prefect.worker.launching import Launch, free_port, start
from xonar_prefect.worker.locks import Locks
from xonar_prefect.worker.processes import boot_id, started_ticks
from xonar_prefect.worker.requeueing import tally_of
from xonar_prefect.worker.slots import Slot, Slots

# What a process takes on a GPU beside its allocator: the CUDA context and library workspaces.
_CONTEXT_MIB = {"nvidia": 600}


class Starting:
    """Starts what was released: tells a training its placement and confines it to its devices."""

    def __init__(
        self,
        *,
        accelerators: Accelerators,
        locks: Locks,
        store: Store,
        slots: Slots,
        host: HostWatch,
        deployments: Deployments,
        in_flight: LaunchesInFlight,
        clock: Callable[[], float],
    ) -> None:
        self._accelerators = accelerators
        self._locks = locks
        self._store = store
        self._slots = slots
        self._host = host
        self._deployments = deployments
        self._in_flight = in_flight
        self._clock = clock

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
        deployment = await self._deployments.read(flow_run.deployment_id)
        placement = Placement(
            run_id=entry.run_id,
            devices=entry.devices,
            device_kind=self._accelerators.kind if entry.devices else "none",
            device_model=entry.device_model,
            entrypoint=deployment.entrypoint if deployment else None,
            gpus=slot.training.gpus,
            memory_request_mib=entry.request_mib,
            # Nobody else will come, so nobody is kept safe by a cap.
            memory_limit_mib=None
            if slot.training.exclusive
            else self._allocator_limit_mib(entry.request_mib),
            shared=bool(self._slots.partners(slot)),
            known_profiles=await anyio.to_thread.run_sync(
                self._known_profiles, slot.training, entry.device_model
            ),
            rendezvous_port=free_port(),
            runs_again_out_of_memory=may_run_out_of_memory_again(tally_of(flow_run.labels)),
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
            run_lock=self._locks.run_file(entry.run_id),
        )
        with anyio.CancelScope(shield=True):  # what was started is written down
            with self._locks.lent(entry.devices) as descriptors:
                slot.process = process = await start(replace(launch, locks=descriptors))
            self._in_flight.end(entry.run_id)
            await self._slots.advance(
                slot,
                state=SlotState.RUNNING,
                launcher_pid=process.pid,
                launcher_started_ticks=started_ticks(process.pid),
                boot_id=boot_id(),
                launched_at_s=self._clock(),
            )
        return slot, process

    def _known_profiles(self, training: Training, device_model: str) -> dict[str, Profile]:
        keys = (training.profile_key or "").split("+")
        known = ((key, self._store.profiles_for(key).get(device_model)) for key in keys if key)
        return {key: profile for key, profile in known if profile is not None}

    def _allocator_limit_mib(self, request: int | None) -> int | None:
        """Return the cap of a training's allocator, so that it cannot outgrow its request."""
        if request is None:
            return None
        return max(1, request - _CONTEXT_MIB.get(self._accelerators.kind, 0))
