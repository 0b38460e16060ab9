"""The Prefect server's database, and how it fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from xonar_prefect.worker.launching import free_port

_LOCK_SECONDS = 30.0


class Database(Protocol):
    """A database of a private server.

    Attributes:
        url: Its address for Prefect.
    """

    url: str

    def fail(self) -> None:
        """Make it useless for a while."""

    def recover(self) -> None:
        """Make it useful again."""


class WriteLock:
    """Holds the write lock of a SQLite database, as a backup or a shell of an operator does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def take(self) -> None:
        """Take it as soon as it is free."""
        self._connection = sqlite3.connect(
            self._path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN IMMEDIATE")

    def give_back(self) -> None:
        if self._connection is not None:
            self._connection.rollback()
            self._connection.close()
            self._connection = None


class Sqlite:
    """Prefect on SQLite; it fails by being locked."""

    def __init__(self, directory: Path) -> None:
        path = directory / "prefect.db"
        self.url = f"sqlite+aiosqlite:///{path}"
        self._lock = WriteLock(path)

    def fail(self) -> None:
        self._lock.take()

    def recover(self) -> None:
        self._lock.give_back()


class Postgresql:
    """Prefect on a private PostgreSQL; it fails by being killed."""

    def __init__(self, programs: Path, directory: Path, port: int) -> None:
        self._programs = programs
        self._directory = directory
        # It refuses to run as root.
        self._as_owner = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
        self._options = (
            f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory}"
        )
        self.url = f"postgresql+asyncpg://xonar@127.0.0.1:{port}/postgres"

    def create(self) -> None:
        if self._as_owner:
            shutil.chown(self._directory, "postgres")
        self._run("initdb", "-D", "data", "-U", "xonar", "--auth=trust", "--no-sync")

    def fail(self) -> None:
        self._run("pg_ctl", "stop", "-D", "data", "-m", "immediate", "-s", "-w")

    def recover(self) -> None:
        self._run("pg_ctl", "start", "-D", "data", "-s", "-w", "-l", "log", "-o", self._options)

    def _run(self, program: str, *arguments: str) -> None:
        with (self._directory / "commands.log").open("ab") as log:
            subprocess.run(
                [*self._as_owner, str(self._programs / program), *arguments],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                timeout=60,
            )


def postgresql_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs on this machine; None where it has none."""
    on_path = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = Path(on_path) if on_path else (installed[-1] if installed else None)
    return found.resolve().parent if found else None


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    """Run a PostgreSQL of our own, where it is installed, until the block ends."""
    programs = postgresql_programs()
    assert programs is not None
    # Not below pytest's own directories, which its owner may not enter.
    with tempfile.TemporaryDirectory(prefix="xonar-postgresql-") as directory:
        database = Postgresql(programs, Path(directory), free_port())
        database.create()
        database.recover()
        try:
            yield database
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # it has failed already
                database.fail()
