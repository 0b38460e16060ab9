"""Starting a worker: found by Prefect, and one sentence where it cannot start."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.actions import WorkPoolCreate

from tests.worker.conftest import Pool
from xonar_prefect.settings import XonarSettings

pytestmark = pytest.mark.server

AWAY = "http://127.0.0.1:9/api"  # the discard service, which nobody runs


async def run(*command: str, **environment: str) -> tuple[int, str]:
    """Run a command of this environment to its end; returns its status and all that it said."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name(command[0])),
        *command[1:],
        env={**os.environ, "COLUMNS": "500", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.fixture
def environment(prefect_server: str, settings: XonarSettings) -> dict[str, str]:
    own = {f"XONAR_{name.upper()}": str(value) for name, value in settings if value is not None}
    return {**own, "PREFECT_API_URL": prefect_server}


async def test_what_is_wrong_is_said_in_one_sentence(
    pool: Pool, environment: dict[str, str], tmp_path: Path
) -> None:
    other = f"process-{uuid4().hex[:8]}"
    await pool.client.create_work_pool(WorkPoolCreate(name=other, type="process"))
    (tmp_path / "file").touch()
    ours = ("xonar", "worker", "start", "--pool", pool.name)
    prefects = ("prefect", "worker", "start", "--pool", pool.name)
    misspelt = "There is no policy named 'complementry'; choose one of complementary, "
    cases: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        ((*ours, "--policy", "complementry"), {}, misspelt),
        (prefects, {"XONAR_POLICY": "complementry"}, misspelt),
        (prefects, {"XONAR_MAX_TRAININGS_PER_GPU": "0"}, "XONAR_MAX_TRAININGS_PER_GPU is '0': "),
        ((*ours, "--devices", "nvidia"), {"CUDA_VISIBLE_DEVICES": ""}, "No device was found: "),
        (ours, {"XONAR_HOME": str(tmp_path / "file" / "home")}, "cannot be made"),
        (ours, {"PREFECT_API_URL": AWAY}, f"The Prefect server at {AWAY} does not answer"),
        (prefects, {"PREFECT_API_URL": AWAY}, "Unable to reach the Prefect API"),
        ((*ours[:-1], other), {}, f"Work pool {other!r} is of type 'process'"),
        (
            (*prefects[:-1], other, "--type", "xonar"),
            {},
            f"Work pool {other!r} is of type 'process'; make one of type 'xonar' with",
        ),
        ((*ours[:-1], "no-such-pool"), {}, "There is no work pool 'no-such-pool'"),
    ]
    for first in range(0, len(cases), 2):  # two at a time, for two cores
        pair = cases[first : first + 2]
        ends = await asyncio.gather(
            *(run(*command, **{**environment, **changes}) for command, changes, _ in pair)
        )
        for (command, changes, sentence), (status, said) in zip(pair, ends, strict=True):
            case = (*command, changes, said)
            assert status == 1, case
            assert sentence in said, case
            assert "Traceback" not in said, case
            assert "run on" not in said, case  # it has started nothing


async def test_prefect_makes_a_pool_of_our_type_by_its_name(
    pool: Pool, environment: dict[str, str]
) -> None:
    name = f"made-{uuid4().hex[:8]}"
    status, said = await run(
        "prefect", "work-pool", "create", name, "--type", "xonar", **environment
    )
    assert status == 0, said
    made = await pool.client.read_work_pool(name)
    assert made.type == "xonar"
    assert "memory_request_mib" in made.base_job_template["variables"]["properties"]
