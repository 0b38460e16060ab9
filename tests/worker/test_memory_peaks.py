"""What trainings are seen to use is kept with their kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from xonar_prefect.core.hosts import Host, HostResident
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Profile, Training
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.store import Store
from xonar_prefect.worker.memory_peaks import MemoryPeaks
from xonar_prefect.worker.slots import Slot

RECIPE = Recipe(flow="digits", entrypoint=None, task="train")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        profile = Profile(key="kind", device_model="V100", peak_memory_mib=2100)
        store.ingest_profile("artifact", profile, RECIPE, 1.0)
        yield store


def slot(key: str | None = "kind") -> Slot:
    entry = LedgerEntry(
        run_id="r",
        name="r",
        worker="one",
        state=SlotState.RUNNING,
        devices=("GPU-0",),
        device_model="V100",
        run_directory="/r",
        reserved_at_s=1.0,
    )
    training = Training(run_id="r", name="r", submitted_at_s=0.0, profile_key=key)
    return Slot(entry=entry, training=training)


async def see(peaks: MemoryPeaks, slots: Sequence[Slot], host_mib: int, held_mib: int) -> None:
    """Let it see these slots, each with this use."""
    host = Host(
        residents=tuple(
            HostResident(training=each.training, used_memory_mib=host_mib) for each in slots
        )
    )
    for each in slots:
        each.peak_mib = max(each.peak_mib, held_mib)
    await peaks.note(slots, host)


def known(store: Store) -> tuple[int | None, int | None]:
    profile = store.profiles_for("kind")["V100"]
    return (profile.peak_host_memory_mib, profile.held_memory_mib)


async def test_the_highest_that_was_seen_is_stored_when_the_training_has_ended(
    store: Store,
) -> None:
    peaks, running = MemoryPeaks(store), [slot()]
    for host_mib, held_mib in ((300, 2000), (900, 15900), (500, 15800)):
        await see(peaks, running, host_mib, held_mib)
        assert known(store) == (None, None)
    await see(peaks, [], 0, 0)
    assert known(store) == (900, 15900)


async def test_main_memory_is_never_lowered_and_what_is_held_is_that_of_the_latest_run(
    store: Store,
) -> None:
    peaks = MemoryPeaks(store)
    for host_mib, held_mib in ((900, 15900), (400, 2300)):
        await see(peaks, [slot()], host_mib, held_mib)
        await see(peaks, [], 0, 0)
    assert known(store) == (900, 2300)


async def test_what_was_not_seen_stays_unknown(store: Store) -> None:
    peaks = MemoryPeaks(store)
    await see(peaks, [slot()], 0, 0)
    await see(peaks, [], 0, 0)
    assert known(store) == (None, None)


@pytest.mark.parametrize("key", [None, "kind+other"])
async def test_a_training_of_no_single_kind_teaches_nothing(store: Store, key: str | None) -> None:
    peaks = MemoryPeaks(store)
    await see(peaks, [slot(key)], 900, 15900)
    await see(peaks, [], 0, 0)
    assert known(store) == (None, None)


async def test_a_kind_that_became_known_while_it_ran_is_taught(store: Store) -> None:
    peaks, running = MemoryPeaks(store), slot(None)
    await see(peaks, [running], 900, 15900)
    running.training = slot("kind").training
    await see(peaks, [running], 100, 100)
    await see(peaks, [], 0, 0)
    assert known(store) == (900, 15900)


async def test_a_store_that_is_away_does_not_stop_the_decision(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> bool:
        raise StoreUnusableError("sqlite:///store.db", "the disk is full")

    monkeypatch.setattr(store, "note_memory", away)
    peaks = MemoryPeaks(store)
    await see(peaks, [slot()], 900, 15900)
    await see(peaks, [], 0, 0)
    assert "the disk is full" in caplog.text
