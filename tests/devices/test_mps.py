"""The Multi-Process Service of another user.

nebuly-ai/nos#19, NVIDIA/k8s-device-plugin#762, #1094, #1614: "User did not send valid credentials".
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xonar_prefect.devices.mps import PIPE_VARIABLE, keep_off_others


@pytest.fixture
def pipes(tmp_path: Path) -> dict[str, str]:
    """An environment that points at a service of this user."""
    (tmp_path / "control").touch()
    return {PIPE_VARIABLE: str(tmp_path)}


def test_a_service_of_ones_own_is_used(pipes: dict[str, str]) -> None:
    assert keep_off_others(pipes, os.getuid()) == {}


def test_a_process_is_kept_off_another_users_service(pipes: dict[str, str]) -> None:
    variables = keep_off_others(pipes, os.getuid() + 1)
    assert not Path(variables[PIPE_VARIABLE]).exists()


def test_where_there_is_no_service_nothing_is_changed(tmp_path: Path) -> None:
    assert keep_off_others({PIPE_VARIABLE: str(tmp_path / "none")}, os.getuid()) == {}
