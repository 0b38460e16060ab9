"""The slots of one worker: which training holds which device, from reservation to memory back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import anyio

from xonar_prefect.core.decisions import Release
from xonar_prefect.core.endings import Ending, Verdict
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import (
    Device,
    Resident,
    Training,
)
from xonar_prefect.core.out_of_memory import Shortage
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.run_directory import Exit, RunDirectory, Status
from xonar_prefect.store import Store
from xonar_prefect.worker.co_runs import CoRunMeter
from xonar_prefect.worker.ledger_writing import LedgerWriter
from xonar_prefect.worker.processes import lives


@dataclass(frozen=True, slots=True, kw_only=True)
class WhenEmpty:
    """What was in use on a device when no training of ours was there, in MiB."""

    used_mib: int
    unattributed_mib: int


@dataclass(slots=True)
class Slot:
    """One training on its devices, as the worker knows it at the moment.

    Attributes:
        entry: What the ledger says.
        training: The training; its profiles are renewed as they become known.
        meter: What its steps cost alone and beside partners.
        pids: Its living processes.
        status: Its latest report.
        profiles_read: Published profiles that were taken in.
        measured_beside_partner: A partner was there when it published its first profile.
        stop_requested_at_s: Since when it is to end (cancelled), if so.
        stop_reason: Why, as a sentence.
        stopped_to_run_again: It is ended in order to be released again, and counts as this.
        ask_at_s: When it is asked to end, if it has not by then.
        over_since: Since when its run has been over while its processes live, and its steps then.
        shortage: Who took what on its devices when it was gone.
        verdict: What follows from its end, once that was decided and counted.
        asked_pids: Processes that were asked to end.
        all_pids: Every process it was seen to have.
        peak_mib: The most memory it was seen to have on one of its devices.
        before: What its devices had in use before any training of ours was there, where known.
        gone: Its command has ended and no process of it is left.
        is_given_up: Its memory did not come back in time: its slot ends, and its devices are judged
            before anybody else gets them.
        concluded: Its final state is set and what it taught is stored.
        process: The launcher, when it is our child; reaped through this.
        freed: Set when the slot is free again.
    """

    entry: LedgerEntry
    training: Training
    meter: CoRunMeter = field(default_factory=CoRunMeter)
    pids: list[int] = field(default_factory=list)
    status: Status | None = None
    profiles_read: int = 0
    measured_beside_partner: bool = False
    stop_requested_at_s: float | None = None
    stop_reason: str = ""
    stopped_to_run_again: Ending | None = None
    ask_at_s: float = 0.0
    over_since: tuple[float, int] | None = None
    shortage: Shortage | None = None
    verdict: Verdict | None = None
    asked_pids: set[int] = field(default_factory=set)
    all_pids: set[int] = field(default_factory=set)
    peak_mib: int = 0
    before: dict[str, WhenEmpty] = field(default_factory=dict)
    gone: bool = False
    is_given_up: bool = False
    concluded: bool = False
    process: Popen[bytes] | None = None
    freed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def run_directory(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(Path(self.entry.run_directory))

    @property
    def is_running(self) -> bool:
        """Whether its command was started and was not seen to end."""
        return self.entry.state is SlotState.RUNNING

    @property
    def vacated(self) -> bool:
        """Whether its devices may be given to somebody else, whatever the server knows of it."""
        return not self.entry.holds_devices

    @property
    def exit(self) -> Exit | None:
        """How its command ended; None while it runs."""
        return self.run_directory.read_exit()

    @property
    def launcher_lives(self) -> bool:
        """Whether its launcher is still there."""
        entry = self.entry
        return lives(entry.launcher_pid, entry.launcher_started_ticks, entry.boot_id)

    @property
    def remaining_seconds(self) -> float | None:
        """Time until its last step at the pace so far; None when its length is unknown."""
        status = self.status
        if status is None or status.steps_total is None or status.steps_done == 0:
            return None
        left = max(0, status.steps_total - status.steps_done)
        return left * status.stepping_seconds / status.steps_done


class Slots:
    """All slots of the worker, in step with the ledger.

    A reservation is durable before anything is started: a worker that dies at any moment finds
    in the ledger what may be running.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        clock: Callable[[], float],
        *,
        pool: str | None = None,
        host: str | None = None,
    ) -> None:
        self._worker = worker
        self._pool = pool
        self._host = host
        self._clock = clock
        self._slots: dict[str, Slot] = {}
        self._freed: list[Slot] = []
        self._when_empty: dict[str, WhenEmpty] = {}
        self._ledger = LedgerWriter(store)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._slots

    def get(self, run_id: str) -> Slot | None:
        """Return the slot of a run."""
        return self._slots.get(run_id)

    async def reserve(self, release: Release, device_model: str, runs: Path) -> Slot:
        """Write a release down and count its full request from now on.

        Raises:
            StoreError: It could not be written; then nothing is reserved.
        """
        now = self._clock()
        training = release.training
        entry = LedgerEntry(
            run_id=training.run_id,
            name=training.name,
            worker=self._worker,
            pool=self._pool,
            host=self._host,
            state=SlotState.RESERVED,
            devices=release.devices,
            device_model=device_model,
            request_mib=release.request_mib,
            profile_key=training.profile_key,
            partners=release.partners,
            code=release.code.value,
            reason=release.reason,
            predicted_slowdown=release.predicted_slowdown,
            run_directory=str(runs / f"{training.run_id}-{int(now * 1000)}"),
            reserved_at_s=now,
        )
        await self._ledger.write(entry)
        slot = Slot(entry=entry, training=training)
        slot.before = {
            device: self._when_empty[device]
            for device in release.devices
            if device in self._when_empty
        }
        self._slots[training.run_id] = slot
        return slot

    def adopt(self, entry: LedgerEntry, training: Training) -> Slot:
        """Take over a training that an earlier life of this worker started."""
        slot = Slot(entry=entry, training=training, meter=CoRunMeter(entry.co_runs))
        slot.gone = slot.vacated
        self._slots[entry.run_id] = slot
        return slot

    async def advance(self, slot: Slot, **changes: Any) -> None:
        """Move a slot on and write it down, as soon as the store takes it."""
        slot.entry = replace(slot.entry, co_runs=slot.meter.co_runs, **changes)
        await self._ledger.note(slot.entry)

    async def settle(self) -> None:
        """Write down what the store did not take before."""
        await self._ledger.settle()

    async def free(self, slot: Slot) -> None:
        """End a slot: its run is concluded, and its devices may be given to somebody else."""
        if slot.entry.launched_at_s is None:
            for partner in self.partners(slot):
                partner.meter.forget(slot.entry.run_id)
        now = self._clock()
        freed_at_s = slot.entry.freed_at_s or now
        await self.advance(slot, state=SlotState.ENDED, freed_at_s=freed_at_s, concluded_at_s=now)
        self._slots.pop(slot.entry.run_id, None)
        self._freed.append(slot)
        slot.freed.set()

    def take_freed(self) -> list[Slot]:
        """Return the slots that became free since the last time this was asked."""
        freed, self._freed = self._freed, []
        return freed

    def on(self, device_id: str) -> tuple[Slot, ...]:
        """Return the trainings on a device."""
        return tuple(slot for slot in self.holding if device_id in slot.entry.devices)

    @property
    def holding(self) -> tuple[Slot, ...]:
        """Those that hold their devices still."""
        return tuple(slot for slot in self if not slot.vacated)

    def partners(self, slot: Slot) -> tuple[Slot, ...]:
        """Return the other trainings on any of this training's devices."""
        devices = set(slot.entry.devices)
        return tuple(
            other
            for other in self.holding
            if other is not slot and devices.intersection(other.entry.devices)
        )

    def processes_by_device(self) -> Mapping[str, Sequence[int]]:
        """Return our living process ids by the device they were put on."""
        processes: dict[str, list[int]] = {}
        for slot in self:
            for device in slot.entry.devices:
                processes.setdefault(device, []).extend(slot.pids)
        return processes

    def observe(self, readings: Sequence[DeviceReading]) -> None:
        """Remember the highest memory of each training, and what devices had without any."""
        for reading in readings:
            here = self.on(reading.id)
            for slot in here:
                slot.peak_mib = max(slot.peak_mib, self._used_mib(slot, reading, here))
            if not here and reading.unavailable is None:
                self._when_empty[reading.id] = WhenEmpty(
                    used_mib=reading.used_mib, unattributed_mib=reading.unattributed_mib
                )

    def when_empty(self, device_id: str) -> WhenEmpty | None:
        """Return what was in use on a device before a training of ours came; None if unknown."""
        return self._when_empty.get(device_id)

    def devices(self, readings: Sequence[DeviceReading]) -> tuple[Device, ...]:
        """Return the devices of a snapshot: what was read, with our trainings on them."""
        return tuple(self._device(reading) for reading in readings)

    def without_device(self) -> int:
        """Return how many trainings run that need no device."""
        return sum(1 for slot in self.holding if not slot.entry.devices)

    def _used_mib(self, slot: Slot, reading: DeviceReading, here: Sequence[Slot]) -> int:
        """Return what a training is seen to use on a device; 0 where it cannot be told."""
        attributed = sum(reading.used_by_pid.get(pid, 0) for pid in slot.pids)
        before = self._when_empty.get(reading.id)
        if attributed or not slot.pids or before is None or len(here) > 1:
            return attributed
        if not reading.driver_keeps_memory:
            return 0
        # Drivers in virtual machines and containers hide whose memory it is; the only training
        # there has what came with it.
        return max(0, reading.unattributed_mib - before.unattributed_mib)

    def _device(self, reading: DeviceReading) -> Device:
        here = self.on(reading.id)
        return Device(
            id=reading.id,
            index=reading.index,
            model=reading.model,
            memory_mib=reading.memory_mib,
            reserved_mib=reading.reserved_mib,
            used_mib=reading.used_mib,
            unavailable=reading.unavailable,
            residents=tuple(
                Resident(
                    training=slot.training,
                    devices=slot.entry.devices,
                    request_mib=slot.entry.request_mib,
                    used_mib=self._used_mib(slot, reading, here),
                    started_at_s=slot.entry.reserved_at_s,
                    remaining_seconds=slot.remaining_seconds,
                )
                for slot in here
            ),
        )
