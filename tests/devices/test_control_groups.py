"""Control groups of both versions, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.devices.control_groups import number, own_groups, statistic

MIXED = "4:memory:/pods/train\n3:cpu,cpuacct:/pods\n1:name=systemd:/x\n0::/unified/train\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(MIXED)
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        (
            "memory",
            ["memory/pods/train", "memory/pods", "memory", "unified/train", "unified", "."],
        ),
        ("cpu", ["cpu/pods", "cpu", "unified/train", "unified", "."]),
        ("pids", ["unified/train", "unified", "."]),
    ],
)
def test_the_groups_of_a_controller_are_ours_and_those_above(
    proc: Path, controller: str, expected: list[str]
) -> None:
    groups = own_groups(controller, proc=proc, cgroups=Path("/groups"))
    assert [str(group.relative_to("/groups")) for group in groups] == expected


def test_a_path_out_of_the_container_stays_below_what_is_shown(proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/../../host\n")
    groups = own_groups("memory", proc=proc, cgroups=Path("/groups"))
    assert groups == (Path("/groups/host"), Path("/groups"))


def test_without_control_groups_there_is_none(tmp_path: Path) -> None:
    assert own_groups("memory", proc=tmp_path) == ()


def test_what_is_no_number_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("max\n")
    (tmp_path / "used").write_text("42\n")
    assert number(tmp_path / "limit") is None
    assert number(tmp_path / "absent") is None
    assert number(tmp_path / "used") == 42


def test_a_statistic_that_is_not_told_is_zero(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 7\n")
    assert statistic(tmp_path / "memory.stat", "inactive_file") == 7
    assert statistic(tmp_path / "memory.stat", "active_file") == 0
    assert statistic(tmp_path / "absent", "inactive_file") == 0
