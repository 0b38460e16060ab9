"""A whole worker and its host: what trainings ask of it, and what their libraries are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Pool, Working
from tests.worker.test_worker import code_is, state_is
from tests.worker.waiting import eventually
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.devices.host_memory import host_memory
from xonar_prefect.settings import XonarSettings

pytestmark = pytest.mark.server

TOTAL_MIB = host_memory().total_bytes // (1024 * 1024)


@pytest.fixture
def settings(settings: XonarSettings) -> XonarSettings:
    changes: dict[str, Any] = {"max_trainings_per_gpu": 4, "host_headroom_mib": 0}
    return settings.model_copy(update=changes)


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


async def test_a_training_is_held_while_the_host_has_too_little_memory_and_refused_for_ever(
    pool: Pool, working: Working
) -> None:
    async with working():
        most = await pool.succeed(
            "wait=gate", gpus=0, host_memory_mib=1, shared_memory_mib=1, name="first"
        )
        await state_is(pool, most, "Running")
        never = await pool.succeed(gpus=0, host_memory_mib=TOTAL_MIB + 1)
        message = await state_is(pool, never, "Refused")
        assert f"needs {TOTAL_MIB + 1} MiB of main memory, but this host offers" in message
        # All of it is never available: somebody else uses some.
        held = await pool.succeed(gpus=0, host_memory_mib=TOTAL_MIB)
        await code_is(pool, held, ReasonCode.INSUFFICIENT_HOST_MEMORY)
        reason = str((await pool.read(held)).labels["xonar.reason"])
        assert f"available of {TOTAL_MIB} MiB (" in reason
        assert "1 training" in reason
        pool.open("gate")
        await state_is(pool, most, "Completed")


async def test_libraries_are_told_their_threads_before_they_start_and_a_job_may_say_otherwise(
    pool: Pool, working: Working
) -> None:
    async with working():
        plain = await pool.succeed("wait=gate", memory_request_mib=50)
        asking = await pool.succeed("wait=gate", gpus=0, cpu_threads=1, host_memory_mib=50)
        own = await pool.succeed(
            "wait=gate", memory_request_mib=50, env={"OMP_NUM_THREADS": "7", "COLOUR": "blue"}
        )
        threads = {}
        for run in (plain, asking, own):
            pids = await eventually(lambda run=run: pool.starts(run))  # type: ignore[misc]
            threads[run.id] = environment(pids[0])["OMP_NUM_THREADS"]
        assert threads == {plain.id: "1", asking.id: "1", own.id: "7"}
        pool.open("gate")
        for run in (plain, asking, own):
            await state_is(pool, run, "Completed")
