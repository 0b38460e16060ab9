"""Whose memory is in use on a device: what is left behind, and what is somebody else's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from xonar_prefect.core.memory import is_taken_in_advance, peak_with_margin_mib
from xonar_prefect.core.models import Limits
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store
from xonar_prefect.worker.slots import Slot, Slots

# What a driver keeps or gives back by itself, and what figures differ by that are read in turn.
NOISE_MIB = 256
# Each correction reads the run and its profile again: growth is not followed MiB by MiB.
_LEAST_RAISE_MIB = 64

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """Memory of a training that is gone.

    Attributes:
        mib: How much.
        pids: The processes it is attributed to; empty where it is attributed to nobody.
        used_mib: What was attributed to nobody before the training began.
    """

    mib: int
    pids: tuple[int, ...] = ()
    used_mib: int | None = None


def left_behind(slot: Slot, slots: Slots, reading: DeviceReading) -> LeftBehind | None:
    """Return what a training whose processes are gone still has on a device, if it can be told.

    What is attributed to its processes is its own. So is, where a driver keeps memory, what
    nobody had before it began and nobody is said to have now.
    """
    pids = slot.all_pids & reading.used_by_pid.keys()
    if pids:
        mib = sum(reading.used_by_pid[pid] for pid in pids)
        return LeftBehind(mib=mib, pids=tuple(sorted(pids)))
    before = slot.before.get(reading.id)
    if reading.unavailable is not None or not reading.driver_keeps_memory or before is None:
        return None
    others = [other for other in slots.on(reading.id) if other is not slot]
    if not all(_is_attributed(other, reading) for other in others):
        return None  # it may be theirs
    mib = reading.unattributed_mib - before.unattributed_mib
    if mib <= NOISE_MIB:
        return None
    return LeftBehind(mib=mib, used_mib=before.unattributed_mib)


def is_back(reading: DeviceReading, pids: Collection[int], used_mib: int | None) -> bool:
    """Tell whether memory that was left behind is free again; not known of an unreadable device."""
    if reading.unavailable is not None:
        return False
    if pids:
        return not reading.used_by_pid.keys() & set(pids)
    return used_mib is None or reading.unattributed_mib <= used_mib + NOISE_MIB


class MemoryWatch:
    """Notices memory that nobody planned for: peaks above a profile, and other people's processes.

    Args:
        slots: The worker's slots.
        store: Where profiles are.
        limits: The margin over a measured peak.
        on_profile: Lets a training's new profile count.
        proc: Where `/proc` is, for the names of processes.
    """

    def __init__(
        self,
        slots: Slots,
        store: Store,
        limits: Limits,
        *,
        on_profile: Callable[[Slot], Awaitable[None]],
        proc: Path = Path("/proc"),
    ) -> None:
        self._slots = slots
        self._store = store
        self._limits = limits
        self._on_profile = on_profile
        self._proc = proc
        self._intruded: set[str] = set()
        self._noted_mib: dict[str, int] = {}

    async def look(self, readings: Sequence[DeviceReading]) -> bool:
        """Look at what the devices show; return whether a profile was raised."""
        for reading in readings:
            self._notice_others(reading)
        here = {slot.entry.run_id for slot in self._slots}
        self._noted_mib = {run: mib for run, mib in self._noted_mib.items() if run in here}
        raised = False
        for slot in self._slots:
            raised |= await self._raise_peak(slot, readings)
        return raised

    async def _raise_peak(self, slot: Slot, readings: Sequence[DeviceReading]) -> bool:
        """Correct the profile of a training that takes more than its peak and margin.

        What a framework takes in advance is no peak: it would stand for ever, also when the
        framework no longer does so.

        What stays within the margin is what the margin is for: taken in, it would be given a
        margin of its own, and so on, run after run, up to what the allocator is capped to.
        """
        if slot.training.memory_elastic:
            return False  # it takes what there is
        model = slot.entry.device_model
        profile = slot.training.profile_on(model)
        known_mib = None if profile is None else profile.peak_memory_mib
        if known_mib is None or slot.peak_mib <= self._expected_mib(slot, known_mib):
            return False
        sizes_mib = [each.memory_mib for each in readings if each.id in slot.entry.devices]
        if sizes_mib and is_taken_in_advance(slot.peak_mib, known_mib, min(sizes_mib)):
            return False
        raised = False
        try:
            # Of a run with several training tasks, memory cannot be told apart by task.
            for key in (slot.training.profile_key or "").split("+"):
                raised |= await anyio.to_thread.run_sync(
                    self._store.raise_peak, key, model, slot.peak_mib
                )
        except StoreError as error:
            _logger.error("A higher memory peak of %s is noted later: %s", slot.entry.name, error)
        if not raised:
            return False
        self._noted_mib[slot.entry.run_id] = slot.peak_mib
        _logger.warning(
            "%r uses %d MiB on a device, more than the peak of %d MiB in its profile: the profile "
            "is corrected.",
            slot.entry.name,
            slot.peak_mib,
            known_mib,
        )
        await self._on_profile(slot)
        return True

    def _expected_mib(self, slot: Slot, known_mib: int) -> int:
        expected_mib = peak_with_margin_mib(known_mib, self._limits)
        noted_mib = self._noted_mib.get(slot.entry.run_id)
        if noted_mib is None:
            return expected_mib
        return max(expected_mib, noted_mib + _LEAST_RAISE_MIB)

    def _notice_others(self, reading: DeviceReading) -> None:
        """Say once when others begin to use a device on which trainings of ours run."""
        if not reading.driver_keeps_memory:
            return  # on a processor core, others are the whole host
        here = self._slots.on(reading.id)
        before = self._slots.when_empty(reading.id)
        if not here or before is None:
            self._intruded.discard(reading.id)
            return
        ours = {pid for slot in here for pid in slot.all_pids}
        if reading.unavailable is not None or not all(_is_attributed(s, reading) for s in here):
            return
        others = {pid: mib for pid, mib in reading.used_by_pid.items() if pid not in ours}
        mib = reading.unattributed_mib + sum(others.values())
        if mib <= before.used_mib + NOISE_MIB:
            if reading.id in self._intruded:
                self._intruded.discard(reading.id)
                _logger.info("Others have left %s; it takes partners again.", reading.id)
            return
        if reading.id not in self._intruded:
            self._intruded.add(reading.id)
            _logger.warning(
                "Others use %d MiB on %s now, %d MiB when %s began there (%s): what they use is "
                "not given to a partner until they leave.",
                mib,
                reading.id,
                before.used_mib,
                " and ".join(repr(slot.entry.name) for slot in here),
                ", ".join(f"process {pid} {self._name(pid)}" for pid in sorted(others))
                or "processes that the driver does not show",
            )

    def _name(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "comm").read_text(encoding="utf-8").strip()
        except OSError:
            return "of unknown name"


def _is_attributed(slot: Slot, reading: DeviceReading) -> bool:
    return any(pid in reading.used_by_pid for pid in slot.pids)
