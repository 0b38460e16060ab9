"""A whole worker whose disk fills up under it, with real trainings on a real small disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.disks import fill, mounted
from tests.worker.conftest import Pool, Working
from tests.worker.test_worker import Ledger, code_is, slot_is_free, state_is
from tests.worker.waiting import eventually
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.settings import XonarSettings

pytestmark = pytest.mark.server


@pytest.fixture
def settings(settings: XonarSettings, tmp_path: Path) -> Iterator[XonarSettings]:
    """A home on a disk of 16 MiB, of which 4 must stay free."""
    with mounted(tmp_path / "small", mib=16, inodes=2000) as disk:
        changes: dict[str, Any] = {
            "home": disk / "home",
            "least_free_disk_mib": 4,
            "least_free_inodes": 10,
        }
        yield settings.model_copy(update=changes)


async def test_a_full_disk_stops_releases_leaves_trainings_alone_and_recovers(
    pool: Pool, working: Working, ledger: Ledger, settings: XonarSettings
) -> None:
    async with working() as worker:
        slots = worker._parts.slots
        running = await pool.succeed("wait=gate", name="running", memory_request_mib=100)
        await state_is(pool, running, "Running")
        filler = fill(settings.home, leave_mib=2)
        held = await pool.succeed(name="held", memory_request_mib=100)
        await code_is(pool, held, ReasonCode.DISK_FULL)
        reason = str((await pool.read(held)).labels["xonar.reason"])
        assert "MiB free, but 4 are kept for the trainings that run" in reason
        assert str(settings.home) in reason

        fill(settings.home)  # nothing at all is left: no ledger, no status, no exit can grow
        pool.open("gate")
        await state_is(pool, running, "Completed")
        await eventually(lambda: str(running.id) not in slots)
        assert await pool.code(held) == ReasonCode.DISK_FULL.value

        filler.unlink()
        await state_is(pool, held, "Completed")
        ended = await slot_is_free(ledger, running)  # written when there was room again
        assert ended.exit_code == 0
        await slot_is_free(ledger, held)


async def test_a_run_that_cannot_be_launched_for_want_of_room_is_put_back(
    pool: Pool,
    working: Working,
    settings: XonarSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The ledger has room, the run directories have not; and as with a quota, nobody says so before.
    elsewhere = settings.model_copy(update={"store_url": f"sqlite:///{tmp_path / 'store.db'}"})
    async with working(settings=elsewhere) as worker:
        first = await pool.succeed(memory_request_mib=100)
        await state_is(pool, first, "Completed")
        free = worker._parts.disk
        monkeypatch.setattr(free, "_least_free_mib", 0)
        monkeypatch.setattr(free, "_least_free_inodes", 0)
        filler = fill(settings.home)
        run = await pool.succeed(memory_request_mib=100)
        await code_is(pool, run, ReasonCode.DISK_FULL)
        assert "Nothing can be written to" in str((await pool.read(run)).labels["xonar.reason"])
        assert pool.starts(run) == []
        filler.unlink()
        await state_is(pool, run, "Completed")
        assert len(pool.starts(run)) == 1
