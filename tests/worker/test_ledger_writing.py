"""The ledger is written at once or later, and what was written last is what is true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.store import Store
from xonar_prefect.worker.ledger_writing import LedgerWriter

ENTRY = LedgerEntry(
    run_id="a",
    name="a",
    worker="one",
    state=SlotState.RESERVED,
    run_directory="/runs/a",
    reserved_at_s=1.0,
)


class AwayStore(Store):
    """A store that can be away, or refuse one run."""

    away = False
    refused = ""
    broken = False
    loses_answers = False

    def record(self, entry: LedgerEntry) -> None:
        if self.broken:
            raise RuntimeError("a fault of ours")
        if self.away or entry.run_id == self.refused:
            raise StoreUnusableError("postgresql://host/db", "connection refused")
        super().record(entry)
        if self.loses_answers:
            raise StoreUnusableError("postgresql://host/db", "the connection was lost")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AwayStore]:
    with AwayStore.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert isinstance(store, AwayStore)
        yield store


@pytest.fixture
def ledger(store: AwayStore) -> LedgerWriter:
    return LedgerWriter(store)


async def test_what_must_be_durable_is_written_or_raises(
    ledger: LedgerWriter, store: AwayStore
) -> None:
    store.away = True
    with pytest.raises(StoreUnusableError):
        await ledger.write(ENTRY)
    store.away = False
    later = replace(ENTRY, reserved_at_s=2.0)
    await ledger.write(later)
    assert store.entries() == (later,)


async def test_what_the_store_has_though_nobody_believes_it_is_ended_there(
    ledger: LedgerWriter, store: AwayStore
) -> None:
    store.loses_answers = True  # as when a server is killed just after the commit
    with pytest.raises(StoreUnusableError):
        await ledger.write(ENTRY)
    assert store.open_entries() == (ENTRY,)
    store.loses_answers = False
    await ledger.settle()
    assert store.open_entries() == ()


async def test_what_is_true_in_any_case_is_written_when_the_store_is_back(
    ledger: LedgerWriter, store: AwayStore, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.write(ENTRY)
    store.away = True
    running = replace(ENTRY, state=SlotState.RUNNING, launcher_pid=7)
    ended = replace(running, state=SlotState.ENDED, exit_code=0)
    other = replace(running, run_id="b", name="b")
    for entry in (running, other, ended):
        await ledger.note(entry)
    assert "Run a is not yet in the ledger" in caplog.text
    assert ledger.owed == 2
    store.away = False
    await ledger.settle()
    assert ledger.owed == 0
    assert {entry.run_id: entry for entry in store.entries()} == {"a": ended, "b": other}


async def test_an_older_word_never_replaces_a_newer_one(
    ledger: LedgerWriter, store: AwayStore
) -> None:
    await asyncio.gather(*(ledger.note(replace(ENTRY, state=state)) for state in SlotState))
    assert [entry.state for entry in store.entries()] == [SlotState.ENDED]


async def test_an_entry_that_alone_cannot_be_written_keeps_no_other_from_the_ledger(
    ledger: LedgerWriter, store: AwayStore
) -> None:
    store.refused = "a"
    await ledger.note(ENTRY)
    await ledger.note(replace(ENTRY, run_id="b"))
    await ledger.settle()
    assert [entry.run_id for entry in store.entries()] == ["b"]
    assert ledger.owed == 1


async def test_an_entry_that_can_never_be_written_is_said_and_dropped(
    ledger: LedgerWriter, store: AwayStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.broken = True
    await ledger.note(ENTRY)
    assert "Could not write run a to the ledger." in caplog.text
    assert ledger.owed == 0
