"""Writes the ledger, and writes again what could not be written: the store may be away."""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio
import anyio.to_thread

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.errors import StoreError
from xonar_prefect.store import Store

_logger = logging.getLogger(__name__)


class LedgerWriter:
    """The worker's way of writing to the ledger; of each release the latest entry counts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owed: dict[tuple[str, float], LedgerEntry] = {}
        self._writing = anyio.Lock()  # so that what was written last is what is true

    @property
    def owed(self) -> int:
        """How many releases are not yet written down as they are."""
        return len(self._owed)

    async def write(self, entry: LedgerEntry) -> None:
        """Write the first entry of a release; when this returns it is durable.

        Raises:
            StoreError: It could not be written, so there is no such release. Where the connection
                was lost, the store may have it all the same; it is told later that it has ended.
        """
        async with self._writing:
            try:
                await anyio.to_thread.run_sync(self._store.record, entry)
            except StoreError:
                self._owed[_release_of(entry)] = replace(entry, state=SlotState.ENDED)
                raise

    async def note(self, entry: LedgerEntry) -> None:
        """Write an entry now, or at a later `settle`: it is true in any case."""
        self._owed[_release_of(entry)] = entry
        await self.settle()

    async def settle(self) -> None:
        """Write what is owed, as far as that is possible."""
        async with self._writing:
            for release, entry in list(self._owed.items()):
                try:
                    await anyio.to_thread.run_sync(self._store.record, entry)
                except StoreError as error:
                    _logger.warning(
                        "Run %s is not yet in the ledger as it is; it is written later: %s",
                        entry.run_id,
                        error,
                    )
                    # Behind the others: if it alone is what fails, it keeps none of them back.
                    self._owed[release] = self._owed.pop(release)
                    return
                except Exception:  # the training matters more than its record
                    _logger.exception("Could not write run %s to the ledger.", entry.run_id)
                if self._owed.get(release) is entry:
                    del self._owed[release]


def _release_of(entry: LedgerEntry) -> tuple[str, float]:
    return (entry.run_id, entry.reserved_at_s)
