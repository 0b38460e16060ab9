"""A PostgreSQL that nobody else uses, for as long as a benchmark lasts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _binaries() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        raise SystemExit(
            "PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)."
        )
    return installed[-1].parent


@contextmanager
def private_postgresql() -> Iterator[str]:
    """Run a server with a socket in a directory of its own; yields an asyncpg address."""
    binaries = _binaries()
    # PostgreSQL refuses to run as root.
    as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    directory = Path(tempfile.mkdtemp())
    if as_owner:
        shutil.chown(directory, "postgres")

    def run(program: str, *arguments: str) -> None:
        command = [*as_owner, str(binaries / program), *arguments]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)

    data = str(directory / "data")
    run("initdb", "-D", data, "-U", "xonar", "--auth=trust")
    options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
    log = str(directory / "server.log")
    run("pg_ctl", "start", "-D", data, "-w", "-s", "-l", log, "-o", options)
    try:
        yield f"postgresql+asyncpg://xonar@/postgres?host={directory}"
    finally:
        run("pg_ctl", "stop", "-D", data, "-m", "immediate", "-s")
        shutil.rmtree(directory, ignore_errors=True)
