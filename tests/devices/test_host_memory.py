from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from xonar_prefect.devices.host_memory import HostMemory, anonymous_bytes, host_memory

MIB = 1024 * 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:name=systemd:/x\n0::/pods/train\n")
    return tmp_path / "proc"


def add_group(directory: Path, *, limit: str, used_mib: int, cache_mib: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used_mib * MIB}\n")
    (directory / "memory.stat").write_text(f"anon 5\ninactive_file {cache_mib * MIB}\n")


def test_without_a_limit_the_host_is_what_there_is(proc: Path, tmp_path: Path) -> None:
    add_group(tmp_path / "cgroup" / "pods" / "train", limit="max", used_mib=10)
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_a_lower_limit_of_the_group_is_the_total_and_its_cache_is_available(
    proc: Path, tmp_path: Path
) -> None:
    group = tmp_path / "cgroup" / "pods" / "train"
    add_group(group, limit=str(100 * MIB), used_mib=60, cache_mib=20)
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory == HostMemory(total_bytes=100 * MIB, available_bytes=60 * MIB)


def test_a_limit_of_a_group_above_binds_too(proc: Path, tmp_path: Path) -> None:
    add_group(tmp_path / "cgroup" / "pods" / "train", limit=str(100 * MIB), used_mib=60)
    add_group(tmp_path / "cgroup" / "pods", limit=str(80 * MIB), used_mib=75)
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory == HostMemory(total_bytes=80 * MIB, available_bytes=5 * MIB)


def test_a_group_over_its_limit_has_nothing_left(proc: Path, tmp_path: Path) -> None:
    add_group(tmp_path / "cgroup" / "pods" / "train", limit=str(50 * MIB), used_mib=60)
    assert host_memory(proc=proc, cgroups=tmp_path / "cgroup").available_bytes == 0


def test_a_limit_above_the_host_is_none(proc: Path, tmp_path: Path) -> None:
    add_group(tmp_path / "cgroup" / "pods" / "train", limit=str(2**62), used_mib=60)
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory.total_bytes == psutil.virtual_memory().total


@pytest.mark.parametrize("groups", ["4:memory:/x\n", None])
def test_without_control_groups_of_version_2_the_host_is_what_there_is(
    proc: Path, tmp_path: Path, groups: str | None
) -> None:
    (proc / "self" / "cgroup").unlink()
    if groups is not None:
        (proc / "self" / "cgroup").write_text(groups)
    add_group(tmp_path / "cgroup", limit=str(50 * MIB), used_mib=60)
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory.total_bytes == psutil.virtual_memory().total


def test_a_process_holds_what_it_has_written_to() -> None:
    program = "held = bytearray(b'x' * (64 << 20)); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held_bytes = anonymous_bytes(process.pid)
        process.communicate(b"\n")
    assert held_bytes is not None
    assert 64 * MIB <= held_bytes < 256 * MIB
    assert anonymous_bytes(process.pid) is None


def test_a_process_without_memory_holds_none(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("0 0 0 0 0 0 0\n")
    assert anonymous_bytes(7, proc=tmp_path) == 0


def test_mapped_files_and_shared_memory_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("9000 5000 2000 1 0 4000 0\n")
    assert anonymous_bytes(7, proc=tmp_path) == 3000 * os.sysconf("SC_PAGE_SIZE")


def test_a_limit_of_version_1_binds_and_its_cache_is_available(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("4:memory:/pods/train\n0::/\n")
    group = tmp_path / "cgroup" / "memory" / "pods" / "train"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{100 * MIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{70 * MIB}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {20 * MIB}\n")
    memory = host_memory(proc=proc, cgroups=tmp_path / "cgroup")
    assert memory == HostMemory(total_bytes=100 * MIB, available_bytes=50 * MIB)
