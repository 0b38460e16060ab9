"""Watches over started trainings until their slots are free: progress, exit, cancel, clean-up."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

import anyio.to_thread
import httpx

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreError
from xonar_prefect.run_directory import Status
from xonar_prefect.worker.concluding import Concluding
from xonar_prefect.worker.device_memory import left_behind
from xonar_prefect.worker.learning import Learning
from xonar_prefect.worker.output import OutputFollower
from xonar_prefect.worker.processes import ProcessTrees, send_signal
from xonar_prefect.worker.slots import Slot, Slots
from xonar_prefect.worker.stopping import Stopping, without_launcher

# A driver may need a moment to take memory back; afterwards the device is quarantined.
_MEMORY_BACK_SECONDS = 30.0

_logger = logging.getLogger(__name__)


class Supervision:
    """Looks at every slot, again and again, and moves it on."""

    def __init__(
        self,
        slots: Slots,
        learning: Learning,
        concluding: Concluding,
        stopping: Stopping,
        *,
        clock: Callable[[], float],
        stop_grace_seconds: float,
        on_profile: Callable[[Slot], Awaitable[None]],
    ) -> None:
        self._slots = slots
        self._learning = learning
        self._concluding = concluding
        self._stopping = stopping
        self._clock = clock
        self._stop_grace_seconds = stop_grace_seconds
        self._on_profile = on_profile
        self._trees = ProcessTrees()
        self._output = OutputFollower()

    async def look(self, read_devices: Callable[[], Awaitable[Sequence[DeviceReading]]]) -> bool:
        """Look at every slot.

        Returns:
            Whether a device became free or a profile was learnt: reason to decide again.
        """
        running = {slot.entry.run_id for slot in self._slots if slot.is_running}
        changed = await self._look_once(read_devices)
        # A device is free only after a scan that is younger than the exit of the command; where
        # one has just ended, that is the next.
        if any(slot.entry.run_id in running and not slot.is_running for slot in self._slots):
            changed |= await self._look_once(read_devices)
        return changed

    async def _look_once(
        self, read_devices: Callable[[], Awaitable[Sequence[DeviceReading]]]
    ) -> bool:
        trees = await anyio.to_thread.run_sync(self._trees.scan)
        for slot in self._slots:
            slot.pids = trees.get(slot.entry.run_directory, [])
            slot.all_pids.update(slot.pids)
            slot.status = _report(slot) or slot.status
            self._output.follow(slot.run_directory.output, slot.entry.name)
        self._measure()
        changed = False
        for slot in self._slots:
            # What is wrong with one training must not keep the others from their ends.
            try:
                changed |= await self._advance(slot, read_devices)
            except (httpx.HTTPError, OSError) as error:
                _logger.warning("Run %s: %s; trying again.", slot.entry.name, error)
            except Exception:
                _logger.exception(
                    "Run %s could not be looked after; trying again.", slot.entry.name
                )
        return changed

    async def attend(self) -> bool:
        """Do what no launch waits for: notice cancels, and conclude what has ended.

        Returns:
            Whether the server was told of an end, and counts one less.
        """
        await self._stopping.look()
        told = False
        for slot in self._slots:
            if not slot.gone:
                continue
            try:
                told |= await self._conclude(slot)
            except (httpx.HTTPError, OSError) as error:
                _logger.warning("Run %s: %s; trying again.", slot.entry.name, error)
            except Exception:
                _logger.exception("Run %s could not be concluded; trying again.", slot.entry.name)
        return told

    def _measure(self) -> None:
        for slot in self._slots:
            partners = {
                # What has ended does not report any more that it is not stepping.
                other.entry.run_id: other.status if other.is_running else None
                for other in self._slots.partners(slot)
            }
            slot.meter.observe(slot.status, partners)

    def take_over(self, slot: Slot) -> None:
        """Look after a training that an earlier life of this worker started."""
        self._output.skip(slot.run_directory.output)

    async def _advance(
        self, slot: Slot, read_devices: Callable[[], Awaitable[Sequence[DeviceReading]]]
    ) -> bool:
        changed = await self._take_in_profiles(slot)
        if slot.is_running:
            if self._has_ended(slot):
                await self._drain(slot)
            else:
                self._stopping.enforce(slot)
        elif slot.entry.state is SlotState.DRAINING:
            changed |= await self._clean_up(slot, read_devices)
        return changed

    async def _take_in_profiles(self, slot: Slot) -> bool:
        if slot.status is None or slot.status.profiles_published <= slot.profiles_read:
            return False
        shared = any(window.partners for window in slot.meter.co_runs)
        shared |= bool(self._slots.partners(slot))
        if slot.profiles_read == 0:
            slot.measured_beside_partner |= shared
        try:
            # Published again, it may be what a partner has made of it, or a higher peak, and that
            # counts either way.
            joint = slot.measured_beside_partner or shared
            await self._learning.read_profiles(slot, joint=joint)
        except (httpx.HTTPError, StoreError) as error:  # the training's life goes on without it
            _logger.warning("The profile of %s cannot be read yet: %s", slot.entry.name, error)
            return False
        slot.profiles_read = slot.status.profiles_published
        await self._on_profile(slot)
        return True

    @staticmethod
    def _has_ended(slot: Slot) -> bool:
        return slot.exit is not None or not (slot.pids or slot.launcher_lives)

    async def _drain(self, slot: Slot) -> None:
        ended = slot.exit
        if slot.process is not None:
            slot.process.poll()
        await self._slots.advance(
            slot,
            state=SlotState.DRAINING,
            exit_code=ended.exit_code if ended else None,
            ended_at_s=ended.ended_at_s if ended else self._clock(),
        )
        # What the command left behind has no purpose any more.
        send_signal(without_launcher(slot), signal.SIGTERM)

    async def _clean_up(
        self, slot: Slot, read_devices: Callable[[], Awaitable[Sequence[DeviceReading]]]
    ) -> bool:
        draining_for = self._clock() - (slot.entry.ended_at_s or 0.0)
        if slot.pids:
            if draining_for >= self._stop_grace_seconds:
                send_signal(without_launcher(slot) or slot.pids, signal.SIGKILL)
            return False
        if slot.process is not None:
            slot.process.poll()
        if not slot.gone:
            # Before anybody else gets its devices: afterwards nobody can tell who took what.
            self._concluding.note_memory(slot, await read_devices())
            slot.gone = True
        if slot.is_given_up:
            return False
        if not await self._memory_is_out(slot, read_devices):
            await self._slots.advance(slot, state=SlotState.VACATED, freed_at_s=self._clock())
        elif draining_for >= _MEMORY_BACK_SECONDS:
            slot.is_given_up = True
        return slot.vacated

    async def _conclude(self, slot: Slot) -> bool:
        is_news = not slot.concluded
        if is_news:
            if not await self._concluding.conclude(slot):
                return False
            slot.concluded = True
            await self._learn(slot)
        if slot.vacated or slot.is_given_up:
            if slot.process is not None:
                slot.process.poll()  # it may have been on its way out when nothing was left of it
            self._output.finish(slot.run_directory.output, slot.entry.name)
            self._stopping.forget(slot)
            await self._slots.free(slot)
        return is_news

    async def _learn(self, slot: Slot) -> None:
        try:
            await self._learning.observe(slot)
        except Exception:  # its slot is worth more than what it taught
            _logger.exception("What %s taught about sharing is lost.", slot.entry.name)

    async def _memory_is_out(
        self, slot: Slot, read_devices: Callable[[], Awaitable[Sequence[DeviceReading]]]
    ) -> bool:
        """Tell whether memory of this training is still in use on a device of its."""
        return any(
            left_behind(slot, self._slots, reading) is not None
            for reading in await read_devices()
            if reading.id in slot.entry.devices
        )


def _report(slot: Slot) -> Status | None:
    try:
        return slot.run_directory.read_status()
    except (AttributeError, OSError, TypeError, ValueError) as error:
        # Its process wrote it, and may write anything.
        _logger.debug("The report of %s cannot be read: %s", slot.entry.name, error)
        return None
