"""Sentences about the host around the devices: each says why, with the arithmetic in it."""

from __future__ import annotations

from xonar_prefect.core.hosts import Disk, Host

_WHAT = {
    "host_memory_mib": "MiB of main memory",
    "cpu_threads": "processor threads",
    "shared_memory_mib": "MiB of shared memory",
}


def memory(
    host: Host, available: int, reserved: int, trainings: int, needed: int, *, known: bool
) -> str:
    """Say that main memory is too scarce now.

    Args:
        host: The host.
        available: What it has for another training.
        reserved: What its trainings are counted with.
        trainings: How many they are.
        needed: What this training is counted with.
        known: Whether that is more than an even share.
    """
    parts = [f"{host.foreign_memory_mib} in use by others"]
    if trainings:
        parts.append(f"{reserved} reserved for {trainings} training{'s' * (trainings > 1)}")
    if host.headroom_mib:
        parts.append(f"headroom {host.headroom_mib}")
    guess = (
        ""
        if known
        else ", an even share, as its use is neither measured nor declared (`host_memory_mib`)"
    )
    return (
        f"This host has {available} MiB of main memory available of {host.memory_mib} MiB "
        f"({', '.join(parts)}), but this training needs {needed} MiB{guess}."
    )


def threads(host: Host, available: int, needed: int) -> str:
    """Say that processor threads are too scarce now."""
    return (
        f"This host has {available} processor threads available of {host.cpu_threads} (the others "
        f"are reserved), but this training needs {needed}."
    )


def shared_memory(host: Host, available: int, reserved: int, needed: int) -> str:
    """Say that shared memory is too scarce now."""
    return (
        f"Shared memory has {available} MiB available of {host.shared_memory_mib} MiB "
        f"({host.used_shared_memory_mib} in use, {reserved} reserved), but this training needs "
        f"{needed} MiB."
    )


def kept(older: str, max_wait_seconds: float) -> str:
    """Say that an earlier training waits for the same."""
    return (
        f"What is left of this host is kept for '{older}', which was submitted earlier and has "
        f"waited longer than {max_wait_seconds:g} s."
    )


def impossible(host: Host, variable: str, needed: int, most: int) -> str:
    """Say that the host could not give what is needed even if nothing ran there."""
    headroom = host.headroom_mib if variable == "host_memory_mib" else 0
    account = f" ({host.memory_mib} in all, headroom {headroom})" if headroom else ""
    return (
        f"This training needs {needed} {_WHAT[variable]}, but this host offers {most} even when "
        f"nothing runs on it{account}; lower its job variable `{variable}`, or submit it to a pool "
        "with larger hosts."
    )


def disk_shortage(disk: Disk) -> str | None:
    """Say what the disk lacks, if anything."""
    if disk.problem is not None:
        return (
            f"Nothing can be written to {disk.path} ({disk.problem}); nothing is released until "
            "that is mended."
        )
    if disk.free_mib < disk.least_free_mib:
        return _too_little(disk.path, f"{disk.free_mib} MiB", disk.least_free_mib, "DISK_MIB")
    if disk.free_inodes is not None and disk.free_inodes < disk.least_free_inodes:
        return _too_little(
            disk.path, f"{disk.free_inodes} inodes", disk.least_free_inodes, "INODES"
        )
    return None


def _too_little(path: str, free: str, least: int, setting: str) -> str:
    return (
        f"The file system of {path} has {free} free, but {least} are kept for the trainings that "
        f"run (XONAR_LEAST_FREE_{setting}); nothing is released until there are more."
    )
