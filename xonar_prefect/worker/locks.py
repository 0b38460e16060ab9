"""Locks between workers of one host: one worker per name, one worker per device."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from xonar_prefect.errors import DevicesTakenError, SettingsError, WorkerNameTakenError


def default_lock_directory() -> Path:
    """Return the directory of locks, the same for every worker of this user on this host."""
    return Path(tempfile.gettempdir()) / f"xonar-locks-{os.getuid()}"


class Locks:
    """Holds locks until it is closed; the kernel drops them when nobody has them open any more.

    A device's lock is handed on to the launcher of every training on it, so that a device stays
    taken as long as a training of a worker that is gone runs there. Only a worker of that name,
    which adopts those trainings, may use such a device.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or default_lock_directory()
        self._names: list[IO[str]] = []
        self._devices: dict[str, IO[str]] = {}
        self._left_to_trainings: set[str] = set()
        self._owner = ""

    def take_name(self, pool: str, name: str) -> None:
        """Take a worker's name.

        Raises:
            WorkerNameTakenError: A worker of this name runs on this host.
            SettingsError: The directory of locks cannot be used.
        """
        file, _ = self._take(f"worker-{pool}/{name}", name)
        if file is None:
            raise WorkerNameTakenError(name, pool)
        self._names.append(file)

    def take_devices(self, device_ids: Iterable[str], owner: str) -> frozenset[str]:
        """Take as many of these devices as no other worker has.

        Args:
            device_ids: The devices.
            owner: Who takes them; a device that trainings of this owner still hold is ours.

        Raises:
            NoDeviceError: All of them are taken.
            SettingsError: The directory of locks cannot be used.
        """
        self._owner = owner
        others: set[str] = set()
        wanted = list(device_ids)
        for device_id in wanted:
            file, holder = self._take(f"device-{device_id}", owner)
            if file is not None:
                self._devices[device_id] = file
            elif holder == owner:
                self._left_to_trainings.add(device_id)
            else:
                others.add(holder)
        taken = frozenset([*self._devices, *self._left_to_trainings])
        if wanted and not taken:
            raise DevicesTakenError(len(wanted), others)
        return taken

    def take_back(self) -> None:
        """Take the locks that trainings of an earlier life of this worker have let go of."""
        for device_id in list(self._left_to_trainings):
            file, _ = self._take(f"device-{device_id}", self._owner)
            if file is not None:
                self._devices[device_id] = file
                self._left_to_trainings.discard(device_id)

    def descriptors(self, device_ids: Iterable[str]) -> tuple[int, ...]:
        """Return what a launcher must inherit to hold the locks of these devices."""
        return tuple(
            self._devices[device_id].fileno()
            for device_id in device_ids
            if device_id in self._devices
        )

    def close(self) -> None:
        """Give every lock back that no training holds too."""
        for file in (*self._devices.values(), *self._names):
            file.close()
        self._devices.clear()
        self._names.clear()

    def _take(self, subject: str, owner: str) -> tuple[IO[str] | None, str]:
        """Return the locked file, or None, and who has it."""
        digest = hashlib.sha256(subject.encode()).hexdigest()[:24]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (self._directory / f"{digest}.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                return None, file.read().strip()
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"{owner}\n".encode())
        except OSError as error:
            file.close()
            raise self._unusable(error) from error
        return file, owner

    def _unusable(self, error: OSError) -> SettingsError:
        return SettingsError(
            f"The directory of locks {self._directory} cannot be used ({error.strerror}); set "
            "XONAR_LOCK_DIRECTORY to one that this user may write to."
        )
