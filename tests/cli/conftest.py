"""Run a command as a user does, in a home of its own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from xonar_prefect.cli import main
from xonar_prefect.settings import load_settings
from xonar_prefect.store import Store


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        return json.loads(self.output)

    @property
    def words(self) -> str:
        """The output without line breaks and frames, which depend on the terminal's width."""
        return " ".join(self.output.replace("│", " ").replace("┃", " ").split())


Xonar = Callable[..., Ended]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool with a deployment, filled by the test."""

    name: str
    deployment_id: UUID
    runs: dict[str, str] = field(default_factory=dict)

    def submit(self, name: str, told: dict[str, str] | None = None, **options: object) -> str:
        """Schedule a run and return its id; `told` are the labels a worker would write."""

        async def submit() -> str:
            from prefect import get_client

            async with get_client() as client:
                run = await client.create_flow_run_from_deployment(
                    self.deployment_id, name=name, **options
                )
                if told:
                    await client.update_flow_run_labels(run.id, told)
                return str(run.id)

        return asyncio.run(submit())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XONAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XONAR_DEVICES", "cpu")
    monkeypatch.setenv("XONAR_CPU_DEVICES", "0")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "home"


@pytest.fixture
def xonar(capsys: pytest.CaptureFixture[str]) -> Xonar:
    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return run


@pytest.fixture
def store(home: Path) -> Store:
    with Store.open(load_settings().effective_store_url) as store:
        yield store


@pytest.fixture
def pool(xonar) -> Pool:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    assert xonar("pool", "create", name).status == 0

    async def deploy() -> UUID:
        from prefect import flow, get_client

        async with get_client() as client:
            flow_id = await client.create_flow(flow(lambda: None, name=f"flow-{name}"))
            return await client.create_deployment(flow_id, "deployment", work_pool_name=name)

    return Pool(name, asyncio.run(deploy()))
