"""Locks between workers of one host: one worker per name, one worker per device."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from xonar_prefect.errors import NoDeviceError, SettingsError, WorkerNameTakenError


def default_lock_directory() -> Path:
    """Return the directory of locks, the same for every worker of this user on this host."""
    return Path(tempfile.gettempdir()) / f"xonar-locks-{os.getuid()}"


class Locks:
    """Holds locks until it is closed; the kernel drops them when the process dies."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or default_lock_directory()
        self._files: list[IO[str]] = []

    def take_name(self, pool: str, name: str) -> None:
        """Take a worker's name.

        Raises:
            WorkerNameTakenError: A worker of this name runs on this host.
            SettingsError: The directory of locks cannot be used.
        """
        if not self._take(f"worker-{pool}/{name}", name):
            raise WorkerNameTakenError(name, pool)

    def take_devices(self, device_ids: Iterable[str], owner: str) -> frozenset[str]:
        """Take as many of these devices as no other worker has.

        Raises:
            NoDeviceError: All of them are taken.
            SettingsError: The directory of locks cannot be used.
        """
        wanted = list(device_ids)
        taken = frozenset(each for each in wanted if self._take(f"device-{each}", owner))
        if wanted and not taken:
            raise NoDeviceError(
                f"all {len(wanted)} devices of this host are used by other xonar workers"
            )
        return taken

    def close(self) -> None:
        """Give every lock back."""
        for file in self._files:
            file.close()
        self._files.clear()

    def _take(self, subject: str, owner: str) -> bool:
        digest = hashlib.sha256(subject.encode()).hexdigest()[:24]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (self._directory / f"{digest}.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise SettingsError(
                f"The directory of locks {self._directory} cannot be used ({error.strerror}); set "
                "XONAR_LOCK_DIRECTORY to one that this user may write to."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        file.write(f"{subject} {owner} {os.getpid()}\n")
        file.flush()
        self._files.append(file)
        return True
