"""Small files to simulate from, and a run of the command with their names in place."""

from __future__ import annotations

from pathlib import Path

import pytest

PROFILES = """training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib
half,V100,50,50,100,4000
busy,V100,100,0,100,4000
idle,V100,10,90,100,4000
"""
TRACE = """submit_s,training,solo_duration_s,gpus
0,half,100,1
0,half,100,1
0,busy,50,1
"""


class Files:
    """Writes files by name and tells their paths."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("profiles.csv", PROFILES)
        self.write("trace.csv", TRACE)

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def __call__(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def arguments(files: Files) -> list[str]:
    """Simulate the trace on one GPU with memory for everybody."""
    return [
        "simulate",
        "--profiles",
        files("profiles.csv"),
        "--trace",
        files("trace.csv"),
        "--gpus",
        "1:V100:16000",
    ]
