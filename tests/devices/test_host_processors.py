"""How many threads may run at once: processors, or the lower quota of a control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xonar_prefect.devices.host_processors import processor_threads


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("3:cpu,cpuacct:/one\n0::/two\n")
    return tmp_path / "proc"


def threads(proc: Path, tmp_path: Path) -> int:
    return processor_threads(proc=proc, cgroups=tmp_path / "groups", affinity=lambda: range(8))


def test_without_a_quota_they_are_the_processors_we_may_use(proc: Path, tmp_path: Path) -> None:
    assert threads(proc, tmp_path) == 8
    assert 1 <= processor_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("300000 100000", 3), ("250000 100000", 3), ("1000 100000", 1)],
)
def test_a_quota_of_version_2_bounds_them(
    proc: Path, tmp_path: Path, quota: str, expected: int
) -> None:
    (tmp_path / "groups" / "two").mkdir(parents=True)
    (tmp_path / "groups" / "two" / "cpu.max").write_text(f"{quota}\n")
    assert threads(proc, tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("200000", 2), ("900000", 8)])
def test_a_quota_of_version_1_bounds_them(
    proc: Path, tmp_path: Path, quota: str, expected: int
) -> None:
    group = tmp_path / "groups" / "cpu" / "one"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert threads(proc, tmp_path) == expected
