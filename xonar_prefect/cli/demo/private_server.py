"""A Prefect server that nobody else uses."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psutil
from rich.console import Console

from xonar_prefect.cli.demo.home import Child, Home
from xonar_prefect.cli.demo.live import waiting
from xonar_prefect.errors import DemoError

_HOST = "127.0.0.1"
_START_SECONDS = 180.0
_LOOK_SECONDS = 0.25
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """A running server.

    Attributes:
        child: Its process.
        port: Its port on this host.
        environment: For processes that use it.
    """

    child: Child
    port: int
    environment: dict[str, str]

    @property
    def api_url(self) -> str:
        """Where programs talk to it."""
        return f"http://{_HOST}:{self.port}/api"

    @property
    def runs_url(self) -> str:
        """The page that lists all runs."""
        return f"http://{_HOST}:{self.port}/v2/runs"

    def run_url(self, run_id: str) -> str:
        """Return the page of a run."""
        return f"{self.runs_url}/flow-run/{run_id}"


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return True
        return False


def _start(home: Home, port: int, cores: Iterable[int]) -> PrivateServer:
    environment = home.environment() | {
        "PREFECT_API_URL": f"http://{_HOST}:{port}/api",
        "PREFECT_SERVER_UI_API_URL": f"http://{_HOST}:{port}/api",
    }
    command = [sys.executable, "-m", "prefect", "server", "start"]
    command += ["--host", _HOST, "--port", str(port), "--analytics-off"]
    server = PrivateServer(home.start("server", command, environment, "server"), port, environment)
    cores = set(cores)
    if cores:
        os.sched_setaffinity(server.child.process.pid, cores)
    return server


def _answers(server: PrivateServer) -> bool:
    """Tell whether this very server answers, not another one that was faster with the port."""
    try:
        connections = psutil.Process(server.child.process.pid).net_connections("tcp4")
    except psutil.Error:
        return False
    if not any(each.status == psutil.CONN_LISTEN for each in connections):
        return False
    try:
        return httpx.get(f"{server.api_url}/health", timeout=2.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def private_server(
    home: Home, console: Console, *, port: int | None = None, cores: Iterable[int] = ()
) -> Iterator[PrivateServer]:
    """Run a server until the block ends; it answers when the block begins.

    Args:
        home: Where it keeps its database.
        console: Where the wait for it is shown.
        port: Its port; None for a free one.
        cores: Processor cores it may use; none for any.

    Raises:
        DemoError: The port is taken, or the server does not start.
    """
    if port is not None and _is_taken(port):
        raise DemoError.port_taken(port)
    with waiting(console, "Starting a private Prefect server (10 to 30 s) ..."):
        server = _started(home, port, cores)
    try:
        yield server
    finally:
        server.child.stop(seconds=5.0)


def _started(home: Home, port: int | None, cores: Iterable[int]) -> PrivateServer:
    """Start until it answers; a free port may be taken by somebody else before it listens."""
    cores = tuple(cores)
    for attempt in range(_ATTEMPTS if port is None else 1):
        server = _start(home, free_port() if port is None else port, cores)
        deadline = time.monotonic() + _START_SECONDS
        while server.child.alive and time.monotonic() < deadline:
            if _answers(server):
                return server
            time.sleep(_LOOK_SECONDS)
        if server.child.alive:
            raise DemoError.server_silent(_START_SECONDS, server.child.last_words())
        if not _is_taken(server.port) or attempt == _ATTEMPTS - 1:
            break
    raise DemoError.ended("server", server.child.process.returncode, server.child.last_words())
