"""The file system of the worker's home: what is free, and whether it can be written at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from xonar_prefect.core.hosts import Disk

_MIB = 1024 * 1024
_PROBE_BYTES = 65_536
# They pass when somebody makes room; a run that met one of them is put back into the queue.
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class HomeDisk:
    """Looks at the file system of a directory.

    What the file system reports is not all: a quota may end before it is full. So once writing
    has failed, a little file is tried at every look, until it succeeds.

    Args:
        home: The directory.
        least_free_mib: What releases leave to the trainings that run.
        least_free_inodes: How many files they leave.
    """

    def __init__(self, home: Path, *, least_free_mib: int, least_free_inodes: int) -> None:
        self._home = home
        self._least_free_mib = least_free_mib
        self._least_free_inodes = least_free_inodes
        self._is_doubtful = False

    def doubt(self) -> None:
        """Have the next look try whether anything can be written."""
        self._is_doubtful = True

    def has_failed(self, error: BaseException) -> bool:
        """Note that writing failed; return whether it is of the kind that passes by itself."""
        passes = isinstance(error, OSError) and error.errno in _PASSING
        self._is_doubtful |= passes
        return passes

    def read(self) -> Disk | None:
        """Look at it; None where the file system tells nothing."""
        try:
            status = os.statvfs(self._home)
        except OSError:
            return None
        return Disk(
            path=str(self._home),
            free_mib=status.f_bavail * status.f_frsize // _MIB,
            least_free_mib=self._least_free_mib,
            # Some file systems make inodes as they need them, and count none.
            free_inodes=status.f_favail if status.f_files else None,
            least_free_inodes=self._least_free_inodes,
            problem=self._problem(),
        )

    def _problem(self) -> str | None:
        if not self._is_doubtful:
            return None
        probe = self._home / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"\0" * _PROBE_BYTES)
        except OSError as error:
            return error.strerror or type(error).__name__
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        self._is_doubtful = False
        return None
