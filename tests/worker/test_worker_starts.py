"""Starting a worker: found by Prefect, and one sentence where it cannot start."""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

import pytest
from prefect.client.schemas.actions import WorkPoolCreate

from tests.worker.conftest import Pool
from tests.worker.programs import program
from xonar_prefect.cli import main
from xonar_prefect.settings import XonarSettings

pytestmark = pytest.mark.server

MISSPELT = (
    "There is no policy named 'complementry' (option --policy or XONAR_POLICY); choose one of "
    "adaptive, "
)
AWAY = "http://127.0.0.1:9/api"  # the discard service, which nobody runs


async def run(*command: str, **environment: str) -> tuple[int, str]:
    """Run a command of this environment to its end; returns its status and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *program(command[0]),
        *command[1:],
        env={**os.environ, "COLUMNS": "500", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.fixture
def environment(prefect_server: str, settings: XonarSettings) -> dict[str, str]:
    own = {f"XONAR_{name.upper()}": str(value) for name, value in settings if value is not None}
    return {**own, "PREFECT_API_URL": prefect_server}


@pytest.fixture
async def process_pool(pool: Pool) -> str:
    name = f"process-{uuid4().hex[:8]}"
    await pool.client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    return name


@pytest.mark.parametrize(
    ("options", "variables", "sentence"),
    [
        (["--pool", "{xonar}", "--policy", "complementry"], {}, MISSPELT),
        (["--pool", "{xonar}"], {"XONAR_POLICY": "complementry"}, MISSPELT),
        (["--pool", "{xonar}"], {"XONAR_POLL_SECONDS": "0"}, "XONAR_POLL_SECONDS is '0': "),
        (["--pool", "{process}"], {}, "is of type 'process', not 'xonar'"),
        (["--pool", "no-such-pool"], {}, "There is no work pool 'no-such-pool'"),
    ],
)
def test_xonar_says_in_one_sentence_what_is_wrong(
    pool: Pool,
    process_pool: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    variables: dict[str, str],
    sentence: str,
) -> None:
    places = {"xonar": pool.name, "process": process_pool}
    for name, value in {**environment, **variables}.items():
        monkeypatch.setenv(name, value)
    status = main(["worker", "start", *(option.format(**places) for option in options)])
    said = "".join(capfd.readouterr())
    assert status == 1
    assert sentence in said
    assert "Traceback" not in said
    assert "run on" not in said  # it has started nothing


async def test_prefect_and_xonar_say_in_one_sentence_what_is_wrong(
    pool: Pool, process_pool: str, environment: dict[str, str]
) -> None:
    ours, theirs = ([program, "worker", "start", "--pool"] for program in ("xonar", "prefect"))
    away = {"PREFECT_API_URL": AWAY}
    file = pool.directory / "file"
    file.touch()
    cases: list[tuple[list[str], dict[str, str], str]] = [
        ([*ours, pool.name, "--devices", "nvidia"], {"CUDA_VISIBLE_DEVICES": ""}, "No device was"),
        ([*ours, pool.name], {"XONAR_CPU_DEVICES": "4096"}, "4096"),
        ([*ours, pool.name], {"XONAR_HOME": f"{file}/home"}, "/home cannot be made (Not a dir"),
        ([*ours, pool.name], {"XONAR_STORE_URL": "nonsense"}, "The store nonsense cannot be"),
        ([*ours, pool.name], away, f"The Prefect server at {AWAY} does not answer"),
        ([*theirs, pool.name], away, "Unable to reach the Prefect API"),
        ([*theirs, pool.name], {"XONAR_POLICY": "complementry"}, MISSPELT),
        (
            [*theirs, process_pool, "--type", "xonar"],
            {},
            f"Work pool {process_pool!r} is of type 'process'; make one of type 'xonar' with",
        ),
    ]
    ends = await asyncio.gather(
        *(run(*command, **{**environment, **changes}) for command, changes, _ in cases)
    )
    for (command, changes, sentence), (status, said) in zip(cases, ends, strict=True):
        case = (*command, changes, said)
        assert status == 1, case
        assert sentence in said, case
        assert "Traceback" not in said, case
        assert "run on" not in said, case
    # None of them was shown as one that serves the pool.
    assert await pool.client.read_workers_for_work_pool(pool.name) == []


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
