"""The quarantines of a worker's devices, in step with the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import anyio.to_thread

from xonar_prefect.core.quarantine import Quarantine, QuarantineCause, unavailable_because
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store

# How far back earlier quarantines make the next one longer.
_REMEMBERED_SECONDS = 24 * 3600.0

_logger = logging.getLogger(__name__)


class Quarantines:
    """Begins and ends quarantines; each is logged once, and outlives the worker.

    What could not be written to the store counts all the same, and is written later.
    """

    def __init__(self, store: Store, host: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        self._open: dict[tuple[str, QuarantineCause], Quarantine] = {}
        self._ended: list[Quarantine] = []
        self._unwritten: dict[tuple[str, QuarantineCause, float], Quarantine] = {}

    def take_over(self, devices: Iterable[str]) -> None:
        """Go on with what the store knows of devices that this worker has taken.

        Raises:
            StoreError: It cannot be read.
        """
        taken = set(devices)
        recent = self._store.quarantines(self._host, self._clock() - _REMEMBERED_SECONDS)
        self._ended += [e for e in recent if e.device in taken and e.ended_at_s is not None]
        for each in self._store.open_quarantines(self._host):
            if each.device in taken:
                self._open[each.device, each.cause] = each

    def devices(self) -> set[str]:
        """Return the ids of all devices in quarantine."""
        return {device for device, _ in self._open}

    def get(self, device: str, cause: QuarantineCause) -> Quarantine | None:
        """Return the device's quarantine of this cause, if it lasts."""
        return self._open.get((device, cause))

    def ended(self, device: str, cause: QuarantineCause) -> tuple[Quarantine, ...]:
        """Return the device's quarantines of this cause that have ended in the last day or so."""
        return tuple(e for e in self._ended if (e.device, e.cause) == (device, cause))

    def begin(self, device: str, cause: QuarantineCause, reason: str, **facts: Any) -> None:
        """Begin a quarantine; where one of this cause lasts, renew its reason and facts.

        Args:
            device: The device.
            cause: The cause.
            reason: The reason, as a clause.
            **facts: `until_s`, `pids` and `used_mib`, as in `Quarantine`.
        """
        reason = reason.rstrip(".")  # our errors are sentences; here they become a part of one
        known = self._open.get((device, cause))
        if known is None:
            known = Quarantine(
                host=self._host,
                device=device,
                cause=cause,
                reason=reason,
                begun_at_s=self._clock(),
                **facts,
            )
            _logger.warning("Nothing is released to %s: %s.", device, known.clause)
            self._note(known)
        elif (renewed := replace(known, reason=reason, **facts)) != known:
            self._note(renewed)

    def end(self, device: str, cause: QuarantineCause) -> None:
        """End a quarantine, if there is one of this cause."""
        known = self._open.get((device, cause))
        if known is None:
            return
        self._note(replace(known, ended_at_s=self._clock()))
        if device not in self.devices():
            _logger.info("%s takes trainings again; it did not because: %s.", device, known.reason)

    def end_expired(self) -> None:
        """End what has reached its end."""
        now = self._clock()
        for each in list(self._open.values()):
            if each.until_s is not None and each.until_s <= now:
                self.end(each.device, each.cause)

    def cover(self, reading: DeviceReading) -> DeviceReading:
        """Return the reading with all that keeps trainings off the device."""
        here = (each for each in self._open.values() if each.device == reading.id)
        return replace(reading, unavailable=unavailable_because(here) or reading.unavailable)

    async def write(self) -> None:
        """Write down what is new."""
        for key, quarantine in list(self._unwritten.items()):
            try:
                await anyio.to_thread.run_sync(self._store.record_quarantine, quarantine)
            except StoreError as error:
                _logger.error("A quarantine is written down later: %s", error)
                return
            if self._unwritten.get(key) is quarantine:
                del self._unwritten[key]

    def _note(self, quarantine: Quarantine) -> None:
        key = (quarantine.device, quarantine.cause)
        self._unwritten[quarantine.device, quarantine.cause, quarantine.begun_at_s] = quarantine
        if quarantine.ended_at_s is None:
            self._open[key] = quarantine
            return
        del self._open[key]
        horizon_s = quarantine.ended_at_s - _REMEMBERED_SECONDS
        self._ended = [each for each in self._ended if each.begun_at_s >= horizon_s]
        self._ended.append(quarantine)
