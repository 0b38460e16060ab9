"""A private server and workers in processes of their own, kept up as a service manager does."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.faults.api import Api
from tests.faults.database import Database, WriteLock
from tests.faults.diary import Diary
from tests.faults.journal import Journal
from tests.faults.lives import Life, Nursery
from tests.faults.proxy import Proxy
from tests.waiting import until
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.store import Store
from xonar_prefect.worker.launching import free_port
from xonar_prefect.worker.processes import ProcessTrees, send_signal
from xonar_prefect.worker.worker import XonarWorker

POOL = "trial"
RESTART_SECONDS = 1.0
STOP_SECONDS = 20.0
_SETTINGS = {
    "XONAR_DEVICES": "cpu",
    "XONAR_HEADROOM_MIB": "0",
    "XONAR_MAX_TRAININGS_PER_GPU": "3",
    "XONAR_MARK_AFTER_SECONDS": "0.5",
    "XONAR_VISIBLE_HELD": "10",
    "XONAR_POLL_SECONDS": "1",
    "XONAR_WATCH_SECONDS": "0.2",
    "XONAR_STOP_GRACE_SECONDS": "2",
    "XONAR_REQUEUE_PAUSE_SECONDS": "1",
}
# What Prefect does beside runs: none of it is on trial, and it costs processor time.
_QUIET_SERVER = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in ("EVENT_PERSISTER", "EVENT_LOGGER", "TRIGGERS", "TASK_RUN_RECORDER", "SCHEDULER")
}


class Service:
    """A program that is started again when it dies, unless it is to be down."""

    def __init__(self, name: str, start: Callable[[], Life]) -> None:
        self.name = name
        self.life: Life | None = None
        self._start = start
        self._ended_at: float | None = None
        self._asked_at: float | None = None
        self._is_wanted = False

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.alive

    def start(self) -> None:
        """Start it now, and whenever it has died."""
        self._is_wanted = True
        self._ended_at = None
        if not self.alive:
            self._asked_at = None
            self.life = self._start()

    def keep_up(self) -> bool:
        """Start it a moment after it has died; return whether that was done.

        What was asked to end and does not is killed, as a service manager does: Prefect's server
        may wait for ever for a connection to close.
        """
        now = time.monotonic()
        asked_at = self._asked_at
        if self.life is not None and asked_at is not None and now - asked_at > STOP_SECONDS:
            self.life.send(signal.SIGKILL)
        if not self._is_wanted or self.alive:
            return False
        self._ended_at = self._ended_at or now
        if now - self._ended_at < RESTART_SECONDS:
            return False
        self.start()
        return True

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it; it stays down until it is started."""
        self._is_wanted = False
        self._asked_at = time.monotonic()
        if self.life is not None:
            self.life.send(number)
            self.life.thaw()

    def stop(self, seconds: float = 30.0) -> None:
        """End it for good."""
        self.end(signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            until(lambda: not self.alive, seconds)
        self.end(signal.SIGKILL)
        until(lambda: not self.alive)


class Worker(Service):
    """A worker with a home of its own, on one processor core.

    Args:
        name: Its name.
        home: Its home.
        start: Starts a life of it.
    """

    def __init__(self, name: str, home: Path, start: Callable[[], Life]) -> None:
        super().__init__(name, start)
        self.home = home
        self.store = Store.open(f"sqlite:///{home / 'store.db'}")
        self.store_lock = WriteLock(home / "store.db")

    def open_entries(self) -> tuple[LedgerEntry, ...]:
        """Return what its ledger says of slots that are not free."""
        return self.store.open_entries(self.name)


class Cluster:
    """All that a trial breaks."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        database: Database,
        server: Service,
        proxy: Proxy,
        workers: tuple[Worker, ...],
        api: Api,
    ) -> None:
        self.directory = directory
        self.journal = journal
        self.database = database
        self.server = server
        self.proxy = proxy
        self.workers = workers
        self.api = api
        self.diary = Diary(directory / "diary.jsonl")
        self.deployment = ""
        self._trees = ProcessTrees()

    def processes(self) -> dict[str, list[int]]:
        """Return the processes of all trainings by run directory."""
        return {
            run_directory: pids
            for run_directory, pids in self._trees.scan().items()
            if run_directory.startswith(f"{self.directory}/")
        }

    def keep_up(self) -> None:
        """Start again what has died and should not have."""
        for service in (self.server, *self.workers):
            if service.keep_up():
                self.journal.note("restarted", service=service.name)


def private_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return an environment with nothing of the developer's own Prefect or xonar in it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "XONAR_"))
    }
    return {
        **inherited,
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(directory / "prefect"),
        "COLUMNS": "500",
        **more,
    }


@contextmanager
def cluster(
    directory: Path,
    journal: Journal,
    database: Database,
    *,
    workers: int,
    requeues: int,
) -> Iterator[Cluster]:
    """Run a server and workers until the block ends; then no process of them is left.

    Args:
        directory: Where everything is written.
        journal: Where restarts are noted.
        database: The server's.
        workers: How many, each on a core of its own.
        requeues: How often a training is started again that was killed.
    """
    cores = sorted(os.sched_getaffinity(0))[:workers]
    assert len(cores) == workers, "each worker needs a processor core of its own"
    with ExitStack() as stack:
        port = free_port()
        server_nursery = Nursery(
            "server",
            private_environment(
                directory,
                PREFECT_API_DATABASE_CONNECTION_URL=database.url,
                PREFECT_SERVER_UI_API_URL=f"http://127.0.0.1:{port}/api",
                **_QUIET_SERVER,
            ),
            directory / "server.log",
        )
        stack.callback(server_nursery.close)
        proxy = Proxy(port)
        stack.callback(proxy.close)
        worker_nursery = Nursery(
            "worker",
            private_environment(
                directory,
                PREFECT_API_URL=f"http://127.0.0.1:{proxy.port}/api",
                XONAR_LOCK_DIRECTORY=str(directory / "locks"),
                XONAR_MAX_REQUEUES=str(requeues),
                **_SETTINGS,
            ),
            directory / "workers.log",
        )
        stack.callback(worker_nursery.close)
        staff = []
        for number, core in enumerate(cores):
            worker = _worker(directory, f"worker-{number}", core, worker_nursery)
            stack.callback(worker.store.close)
            staff.append(worker)
        server = Service("server", partial(_start_server, server_nursery, directory, port))
        api = Api(f"http://127.0.0.1:{port}/api")
        stack.callback(api.close)
        built = Cluster(directory, journal, database, server, proxy, tuple(staff), api)
        stack.callback(_end, built)
        server.start()
        until(api.is_healthy, 180.0)
        api.create_pool(POOL, XonarWorker.get_default_base_job_template())
        built.deployment = api.create_deployment(POOL, "training")
        for worker in staff:
            worker.start()
        yield built


def _worker(directory: Path, name: str, core: int, nursery: Nursery) -> Worker:
    home = directory / name
    home.mkdir()
    start = partial(
        nursery.start,
        directory / f"{name}.log",
        *("worker", "start", "--pool", POOL, "--name", name),
        environment={"XONAR_HOME": str(home), "XONAR_CPU_DEVICES": str(core)},
    )
    return Worker(name, home, start)


def _start_server(nursery: Nursery, directory: Path, port: int) -> Life:
    address = ("--host", "127.0.0.1", "--port", str(port))
    return nursery.start(directory / "server.log", "server", "start", *address, "--analytics-off")


def _end(cluster: Cluster) -> None:
    for service in (*cluster.workers, cluster.server):
        service.end(signal.SIGKILL)
    for pids in cluster.processes().values():
        send_signal(pids, signal.SIGKILL)
