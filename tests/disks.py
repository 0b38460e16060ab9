"""Small disks of their own, to be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, *, mib: int = 4, inodes: int = 200) -> Iterator[Path]:
    """Mount a file system of this size in memory; skip the test where one may not."""
    directory.mkdir()
    options = f"size={mib}m,nr_inodes={inodes},mode=700"
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip(f"this user may not mount a file system: {mount.stderr.strip()}")
    try:
        yield directory
    finally:
        # Lazily: a process of the test may just be ending there.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path, *, leave_mib: float = 0.0) -> Path:
    """Fill a small disk but for so much; returns the file that fills it."""
    filler = directory / "filler"
    block = bytes(65_536)
    # Appended to: emptied first, it would for a moment leave room for all.
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            pass
        size = file.tell()
        file.truncate(max(0, size - int(leave_mib * 1024 * 1024)))
    return filler
