"""Locks between workers of one host: one worker per name, one worker per device."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from xonar_prefect.errors import DevicesTakenError, SettingsError, WorkerNameTakenError

_FOR_EVERYBODY = 0o666
# Everybody may make files there, and nobody may remove those of others.
_SHARED_DIRECTORY = 0o1777


def default_lock_directory() -> Path:
    """Return the directory of locks, the same for every worker on this host, whoever runs it."""
    return Path(tempfile.gettempdir()) / "xonar-locks"


class Locks:
    """Holds locks until it is closed; the kernel drops them when nobody has them open any more.

    The launcher of every training holds a second lock of each of its devices, together with the
    other trainings there. So a device stays taken as long as a training of a worker that is gone
    runs on it; only a worker of that name, which adopts those trainings, may have it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or default_lock_directory()
        self._names: list[IO[str]] = []
        self._devices: dict[str, IO[str]] = {}
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

    def take_devices(
        self, device_ids: Iterable[str], owner: str, *, need_one: bool = True
    ) -> frozenset[str]:
        """Take as many of these devices as no other worker has.

        Args:
            device_ids: The devices.
            owner: Who takes them; a device that trainings of this owner still hold is ours.
            need_one: To have none of them is an error.

        Returns:
            Those that are ours.

        Raises:
            DevicesTakenError: Others have all of them.
            SettingsError: The directory of locks cannot be used.
        """
        self._owner = owner
        wanted = list(device_ids)
        others: set[str] = set()
        for device_id in wanted:
            if device_id in self._devices:
                continue
            file, holder = self._take(f"device-{device_id}", owner)
            if file is None:
                others.add(holder)
                continue
            left_by = self._left_by(device_id)
            if left_by in (None, owner):
                self._devices[device_id] = file
            else:
                file.close()
                others.add(left_by or "")
        taken = frozenset(wanted) & self._devices.keys()
        if need_one and wanted and not taken:
            raise DevicesTakenError(len(wanted), others)
        return taken

    @contextmanager
    def lent(self, device_ids: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Open what a launcher must inherit to keep its devices taken as long as it lives.

        Raises:
            SettingsError: The directory of locks cannot be used.
        """
        with ExitStack() as stack:
            files = []
            for device_id in device_ids:
                file = stack.enter_context(self._open(f"trainings-{device_id}"))
                fcntl.flock(file, fcntl.LOCK_SH)
                self._sign(file, self._owner)
                files.append(file)
            yield tuple(file.fileno() for file in files)

    def keep(self) -> None:
        """Tell those who tidy up directories of temporary files that these are in use."""
        for file in (*self._devices.values(), *self._names):
            os.utime(file.fileno())

    def run_file(self, run_id: str) -> Path:
        """Return the file by whose lock the launcher of a run keeps a second copy of it away."""
        return self._directory / f"run-{run_id}.lock"

    def close(self) -> None:
        """Give every lock back that no training holds."""
        for file in (*self._devices.values(), *self._names):
            file.close()
        self._devices.clear()
        self._names.clear()

    def _left_by(self, device_id: str) -> str | None:
        """Return whose trainings run on a device that no worker has; None where there are none."""
        with self._open(f"trainings-{device_id}") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _signature(file)
        return None

    def _take(self, subject: str, owner: str) -> tuple[IO[str] | None, str]:
        """Return the locked file, or None, and who has it."""
        while True:
            file = self._open(subject)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    return None, _signature(file)
            if _is_still(file, self._path(subject)):
                self._sign(file, owner)
                return file, owner
            file.close()  # somebody tidied up between opening and locking: that lock binds nobody

    def _open(self, subject: str) -> IO[str]:
        try:
            _share(self._directory)
            return os.fdopen(_opened(self._path(subject)), "r+", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from error

    def _sign(self, file: IO[str], owner: str) -> None:
        if _signature(file) == owner:
            return
        try:
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), f"{owner}\n".encode(), 0)
        except OSError as error:  # the disk is full
            file.close()
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> SettingsError:
        return SettingsError(
            f"The directory of locks {self._directory} cannot be used ({error.strerror}); set "
            "XONAR_LOCK_DIRECTORY to one that this user may write to."
        )

    def _path(self, subject: str) -> Path:
        return self._directory / f"{hashlib.sha256(subject.encode()).hexdigest()[:24]}.lock"


def _share(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    directory.chmod(_SHARED_DIRECTORY)


def _opened(path: Path) -> int:
    """Open a file that everybody may lock and write.

    Linux refuses to "create" a file of somebody else's that exists in a directory of everybody's:
    what is there is opened as it is.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _FOR_EVERYBODY)
        except FileExistsError:
            continue
        os.fchmod(descriptor, _FOR_EVERYBODY)
        return descriptor


def _is_still(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _signature(file: IO[str]) -> str:
    """Return who has the lock; its holder may not have signed yet."""
    file.seek(0)
    return file.read().strip() or "another worker"
