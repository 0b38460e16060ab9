"""Run a command as a user does, in a home of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
