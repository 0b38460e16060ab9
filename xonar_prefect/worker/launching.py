"""Start one training so that it needs no worker to live on."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import anyio.to_thread

from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, Placement, RunDirectory
from xonar_prefect.settings import SETTING_VARIABLES
from xonar_prefect.worker import launcher

_DEFAULT_COMMAND = "prefect flow-run execute"
# A training outlives a server that is away for minutes. With Prefect's own five attempts it would
# be given up, all its work done, after one; the ninth comes after 17 minutes. A database that is
# started again answers through the server with 500 or 504.
_PATIENT = {"PREFECT_CLIENT_MAX_RETRIES": "9", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,504"}
# How a framework allocates memory, and with how many threads it runs: a job may know better. What
# confines it to its devices and to its share of their memory it cannot change.
_FOR_THE_JOB_TO_CHANGE = frozenset(
    {
        "OMP_NUM_THREADS",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All that a launch needs.

    Attributes:
        run_directory: Where its files go; made here.
        placement: What the training is told.
        command: The command; the default runs the flow run with this interpreter.
        environment: Variables of the job.
        device_environment: Variables that confine it to its devices, and win over those of the job;
            and some for its libraries, which those of the job win over.
        working_directory: Where it starts; None for a new, empty directory.
        processors: Processor cores it is pinned to; None for any.
        locks: Descriptors of its devices' locks, which its launcher holds as long as it lives.
        run_lock: File whose lock keeps a second copy of the run off this host; None for none.
    """

    run_directory: RunDirectory
    placement: Placement
    command: str | None
    environment: Mapping[str, str | None]
    device_environment: Mapping[str, str]
    working_directory: Path | None
    processors: tuple[int, ...] | None
    locks: tuple[int, ...] = ()
    run_lock: Path | None = None


def free_port() -> int:
    """Return a TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _command(command: str | None) -> list[str]:
    if command is None or command.strip() == _DEFAULT_COMMAND:
        # This very interpreter, not whatever `prefect` is first on the path.
        return [sys.executable, "-m", "prefect", "flow-run", "execute"]
    return shlex.split(command)


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without its settings: the store's address may be secret."""
    return {
        name: value for name, value in environment.items() if name.upper() not in SETTING_VARIABLES
    }


def _binding(device_environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in device_environment.items()
        if name not in _FOR_THE_JOB_TO_CHANGE
    }


def _prepare(launch: Launch) -> Path:
    """Make the run directory, all of it or nothing; return where the training starts."""
    directory = launch.run_directory.path
    directory.mkdir(mode=0o700, parents=True)
    try:
        if launch.working_directory is None:
            (directory / "work").mkdir()
        launch.run_directory.write(launch.placement)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return launch.working_directory or directory / "work"


def _start(launch: Launch) -> subprocess.Popen[bytes]:
    directory = launch.run_directory.path
    working_directory = _prepare(launch)
    own = {name: value for name, value in launch.environment.items() if value is not None}
    environment = {
        **_PATIENT,
        **_inherited(os.environ),
        **launch.device_environment,
        **own,
        **_binding(launch.device_environment),
        RUN_DIRECTORY_VARIABLE: str(directory),
    }
    specification = {
        "command": _command(launch.command),
        "environment": environment,
        "working_directory": str(working_directory),
        "run_directory": str(directory),
        "processors": launch.processors,
        "lock": str(launch.run_lock) if launch.run_lock else None,
    }
    # The launcher carries the marker too, so that a restarted worker finds it.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", launcher.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={RUN_DIRECTORY_VARIABLE: str(directory), "PATH": os.environ.get("PATH", "")},
        start_new_session=True,
        pass_fds=launch.locks,
    )
    # Does not fail when the launcher has died: its exit is then noticed like any other.
    with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as pipe:
        pipe.write(json.dumps(specification).encode())
    return process


async def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start the launcher of a training in a session of its own.

    Raises:
        OSError: The run directory or the process could not be made.
    """
    return await anyio.to_thread.run_sync(_start, launch)
