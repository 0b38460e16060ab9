"""The directory of the flows, as a user would work in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FLOWS = Path(__file__).parents[2] / "flows"

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run a program that can import the flows, in a process of its own."""

    def run(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
        search_path = os.pathsep.join(str(each) for each in (*path, FLOWS))
        return subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": search_path,
                "PREFECT_HOME": str(tmp_path),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture(autouse=True)
def _flows_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FLOWS)
