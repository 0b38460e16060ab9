"""Process ids of the host, as NVML gives them, and the ids of the same processes here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_OF_THE_HOST = "pid:[4026531836]"  # the kernel's own number for the outermost namespace
_GPU_FILES = ("/dev/nvidia", "/dev/dxg")


def ids_here(host_ids: Iterable[int], proc: Path) -> dict[int, int]:
    """Return the ids in this process's own namespace by host id, where they can be known.

    On the host every id is itself. Where `/proc` is that of an outer namespace, it names each
    process once per level (NSpid); a process that is not in our namespace is left out then, since
    its host id might be the id of another process here. In a container whose `/proc` shows only
    the container nothing can be mapped, and drivers differ in whose ids they give: there an id
    stands for the process of that number only if that one has a GPU open.

    Processes that end or are hidden in between are no error.
    """
    level = len(_ids_by_level(proc / "self")) - 1
    if level <= 0 and _namespace(proc / "self") in (_OF_THE_HOST, None):
        return {host_id: host_id for host_id in host_ids}
    if level <= 0:
        return {id_: id_ for id_ in host_ids if _has_gpu_open(proc / str(id_))}
    here = {}
    for host_id in host_ids:
        directory = proc / str(host_id)
        ids = _ids_by_level(directory)
        # A process of a container beside ours has as many levels and means others by them.
        if len(ids) == level + 1 and _namespace(directory) == _namespace(proc / "self"):
            here[host_id] = ids[level]
    return here


def _ids_by_level(directory: Path) -> list[int]:
    """Return a process's ids, outermost namespace first; empty where they cannot be read."""
    try:
        status = (directory / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone (ENOENT, ESRCH) or not ours to see (EPERM)
        return []
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return [int(value) for value in line.split()[1:]]
    return []


def _has_gpu_open(directory: Path) -> bool:
    try:
        descriptors = list((directory / "fd").iterdir())
    except OSError:  # gone, or not ours to see
        return False
    return any(_target(each).startswith(_GPU_FILES) for each in descriptors)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _namespace(directory: Path) -> str | None:
    try:
        return str((directory / "ns" / "pid").readlink())
    except OSError:
        return None
