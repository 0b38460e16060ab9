"""What trainings were seen to use of host and devices; kept with their kind when they end."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import anyio.to_thread

from xonar_prefect.core.hosts import Host
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store
from xonar_prefect.worker.slots import Slot

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    key: str | None
    device_model: str
    host_mib: int = 0
    held_mib: int = 0


class MemoryPeaks:
    """Watches the memory of running trainings from outside.

    What a process itself tells of its memory is what its framework uses; what it holds, and what
    it takes of the host, is only seen from here. Zero is never stored: it is unknown.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, _Seen] = {}

    async def note(self, slots: Iterable[Slot], host: Host) -> None:
        """Take in what is seen now, and store what those have used that have ended since."""
        running = {slot.entry.run_id: slot for slot in slots}
        for run_id, slot in running.items():
            known = self._seen.setdefault(run_id, _Seen(None, slot.entry.device_model))
            known.key = slot.training.profile_key
            known.held_mib = max(known.held_mib, slot.peak_mib)
        for each in host.residents:
            if (seen := self._seen.get(each.training.run_id)) is not None:
                seen.host_mib = max(seen.host_mib, each.used_memory_mib)
        for run_id in self._seen.keys() - running.keys():
            await self._store_away(self._seen.pop(run_id))

    async def _store_away(self, seen: _Seen) -> None:
        if seen.key is None or "+" in seen.key:  # several tasks: their memory cannot be told apart
            return
        try:
            await anyio.to_thread.run_sync(
                self._store.note_memory,
                seen.key,
                seen.device_model,
                seen.host_mib or None,
                seen.held_mib or None,
            )
        except StoreError as error:  # the next run of this kind will tell again
            _logger.warning("The memory that was seen of %s is not stored: %s", seen.key, error)
