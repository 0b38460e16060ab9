"""Host process ids in a container.

NVIDIA/gpu-monitoring-tools#63, NVIDIA/nvidia-docker#179, Project-HAMi/HAMi#700: NVML gives ids of
the host, or none. XuehaiPan/nvitop#152, wookayin/gpustat#95: the process ends in between.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.devices.process_ids import ids_here

OURS, OTHERS, HOST = "pid:[4026532001]", "pid:[4026532002]", "pid:[4026531836]"


def add_process(proc: Path, name: str, ids: tuple[int, ...], namespace: str) -> Path:
    directory = proc / name
    (directory / "ns").mkdir(parents=True)
    levels = "\t".join(str(id_) for id_ in ids)
    (directory / "status").write_text(f"Name:\tpython\nPid:\t{ids[0]}\nNSpid:\t{levels}\n")
    (directory / "ns" / "pid").symlink_to(namespace)
    return directory


def test_on_the_host_every_id_is_itself(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (12,), HOST)
    assert ids_here([13, 1], tmp_path) == {13: 13, 1: 1}


def test_an_outer_proc_maps_host_ids_to_ours(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (7001, 12), OURS)
    add_process(tmp_path, "7002", (7002, 13), OURS)
    assert ids_here([7002], tmp_path) == {7002: 13}


def test_a_process_of_another_container_is_left_out(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (7001, 12), OURS)
    add_process(tmp_path, "7003", (7003, 13), OTHERS)
    assert ids_here([7003], tmp_path) == {}


def test_a_process_of_the_host_itself_is_left_out(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (7001, 12), OURS)
    add_process(tmp_path, "12", (12,), HOST)
    assert ids_here([12], tmp_path) == {}


def test_a_process_that_has_ended_is_no_error(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (7001, 12), OURS)
    assert ids_here([7004], tmp_path) == {}


def test_a_namespace_that_may_not_be_seen_is_no_error(tmp_path: Path) -> None:
    add_process(tmp_path, "self", (7001, 12), OURS)
    (add_process(tmp_path, "7005", (7005, 13), OURS) / "ns" / "pid").unlink()
    assert ids_here([7005], tmp_path) == {}


@pytest.mark.parametrize("status", ["Name:\tpython\n", None])
def test_without_levels_every_id_is_itself(tmp_path: Path, status: str | None) -> None:
    if status is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "status").write_text(status)
    assert ids_here([42], tmp_path) == {42: 42}


def open_file(directory: Path, target: str) -> None:
    (directory / "fd").mkdir(exist_ok=True)
    number = len(list((directory / "fd").iterdir()))
    (directory / "fd" / str(number)).symlink_to(target)


def test_in_a_container_of_its_own_an_id_counts_only_if_its_process_has_a_gpu(
    tmp_path: Path,
) -> None:
    # NVIDIA/nvidia-docker#1483: ids of the host, which here are those of other processes.
    add_process(tmp_path, "self", (12,), OURS)
    for name, target in (("13", "/dev/nvidia0"), ("14", "/dev/null"), ("15", "/dev/dxg")):
        open_file(add_process(tmp_path, name, (int(name),), OURS), target)
    add_process(tmp_path, "16", (16,), OURS)  # its files are not ours to see
    assert ids_here([13, 14, 15, 16, 9999], tmp_path) == {13: 13, 15: 15}
