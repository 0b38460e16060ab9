"""How long a slot stands empty: from the exit of a training to the start of the next process.

    python -m tests.benchmarks.exit_to_start --pending 5000 --exits 40 --database postgresql

A private Prefect server holds a long queue of trivial trainings. First this package's worker
serves it, then Prefect's own process worker, both with `--limit 1` and with the settings they have
by default. Each training writes down when its first line ran and when its last one did; a gap is
the time from the one's last line to the next one's first. The interpreter's end and the next one's
start are in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from prefect import flow, get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker
from rich.console import Console
from rich.table import Table

from tests.benchmarks.long_queue import copy_run
from tests.benchmarks.private_postgresql import private_postgresql
from tests.worker.programs import program
from xonar_prefect.cli.demo.home import Home, private_home
from xonar_prefect.cli.demo.private_server import PrivateServer, private_server
from xonar_prefect.store import Store
from xonar_prefect.worker.worker import XonarWorker

_LONGEST_S = 3600.0

TRAINING = """
import time
started = time.time()
import json, os, sys, urllib.request

run = os.environ["PREFECT__FLOW_RUN_ID"]

def state(kind):
    request = urllib.request.Request(
        os.environ["PREFECT_API_URL"] + f"/flow_runs/{run}/set_state",
        json.dumps({"state": {"type": kind}}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()

state("RUNNING")
time.sleep(float(sys.argv[2]))
state("COMPLETED")
with open(sys.argv[1], "a") as file:
    file.write(f"{started} {time.time()} {run}\\n")
"""


@dataclass(frozen=True)
class BenchmarkHome(Home):
    """A home whose server has the given database."""

    database: str | None = None

    @property
    def copying(self) -> str:
        """Address of the server's database, for a driver without async."""
        own = f"sqlite:///{self.path / 'prefect-home' / 'prefect.db'}"
        return (self.database or own).replace("+asyncpg", "+psycopg").replace("+aiosqlite", "")

    def environment(self) -> dict[str, str]:
        database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database or ""}
        return {
            **super().environment(),
            "XONAR_LOCK_DIRECTORY": str(self.path / "locks"),
            "XONAR_DEVICES": "cpu",
            "XONAR_CPU_DEVICES": str(min(os.sched_getaffinity(0))),
            **(database if self.database else {}),
        }


@dataclass(frozen=True)
class Contestant:
    """A worker that is measured: its name in the table, its pool, and how it is started."""

    name: str
    pool: str
    kind: type[XonarWorker | ProcessWorker]
    command: tuple[str, ...]


CONTESTANTS = {
    "xonar": Contestant(
        "xonar", "ours", XonarWorker,
        (*program("xonar"), "worker", "start", "--pool", "ours", "--limit", "1"),
    ),
    "prefect": Contestant(
        "Prefect's process worker", "theirs", ProcessWorker,
        (*program("prefect"), "worker", "start", "--pool", "theirs", "--limit", "1"),
    ),
}  # fmt: skip


def gaps(log: Path) -> list[float]:
    """Return the seconds between each end and the next start."""
    if not log.exists():
        return []
    return [start - end for (_, end, _), (start, _, _) in pairwise(_trainings(log))]


def _trainings(log: Path) -> list[tuple[float, float, str]]:
    lines = (line.split() for line in log.read_text().splitlines())
    return sorted((float(start), float(end), run) for start, end, run in lines)


def steps(log: Path, store: Store) -> dict[str, float]:
    """Return where the time goes with our worker: the median of each part of a gap."""
    released = {entry.run_id: entry for entry in store.entries(limit=10_000)}
    parts: dict[str, list[float]] = {}
    for (_, last_line_s, before), (first_line_s, _, after) in pairwise(_trainings(log)):
        ended, begun = released[before].ended_at_s, released[after].launched_at_s
        if ended is None or begun is None:
            continue
        for name, seconds in (
            ("its interpreter ends", ended - last_line_s),
            ("seen, decided, reserved", released[after].reserved_at_s - ended),
            ("claimed, configured, launched", begun - released[after].reserved_at_s),
            ("the next interpreter starts", first_line_s - begun),
        ):
            parts.setdefault(name, []).append(seconds)
    return {name: statistics.median(seconds) for name, seconds in parts.items()}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile; the largest value where there are too few for it."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def _submit(
    client: PrefectClient, contestant: Contestant, command: str, count: int, database: str
) -> UUID:
    template = contestant.kind.get_default_base_job_template()
    kind = "process" if contestant.kind is ProcessWorker else "xonar"
    pool = WorkPoolCreate(name=contestant.pool, type=kind, base_job_template=template)
    await client.create_work_pool(pool)
    flow_id = await client.create_flow(flow(lambda: None, name=f"flow-{contestant.pool}"))
    deployment = await client.create_deployment(
        flow_id=flow_id,
        name="trivial",
        work_pool_name=contestant.pool,
        job_variables={"command": command},
    )
    run = await client.create_flow_run_from_deployment(deployment)
    copy_run(database, run.id, count - 1)
    return deployment


async def measure(
    server: PrivateServer, home: BenchmarkHome, contestant: Contestant, options: argparse.Namespace
) -> list[float]:
    """Have one worker serve a queue of its own; return the gaps between its trainings."""
    script, log = home.path / "training.py", home.path / f"{contestant.pool}.txt"
    script.write_text(TRAINING)
    command = [sys.executable, "-S", str(script), str(log), str(options.seconds)]
    async with get_client() as client:
        deployment = await _submit(
            client, contestant, shlex.join(command), options.pending, home.copying
        )
        worker = home.start(
            contestant.name, contestant.command, server.environment, contestant.pool
        )
        try:
            deadline = time.monotonic() + _LONGEST_S
            # The first gap is left out: the worker has only just begun.
            while len(gaps(log)) <= options.exits:
                worker.require_alive()
                if time.monotonic() > deadline:
                    raise SystemExit(f"{contestant.name} takes too long:\n{worker.last_words()}")
                await asyncio.sleep(0.5)
        finally:
            worker.stop(seconds=10.0)
        await client.delete_deployment(deployment)  # takes what is still scheduled with it
    return gaps(log)[1 : options.exits + 1]


@contextmanager
def _database(name: str) -> Iterator[str | None]:
    if name == "postgresql":
        with private_postgresql() as url:
            yield url
    else:
        yield None if name == "sqlite" else name


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pending", type=int, default=5000, help="runs in the queue")
    parser.add_argument("--exits", type=int, default=40, help="exits measured of each worker")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a training lasts")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or an address")
    parser.add_argument("--only", choices=sorted(CONTESTANTS), action="append")
    options = parser.parse_args(arguments)
    # Whoever ends this ends the server and the database with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    console = Console()
    table = Table("worker", "pending", "exits", "median s", "p95 s", "longest s",
                  title=f"From exit to start, {options.database}")  # fmt: skip
    with ExitStack() as stack:
        given = stack.enter_context(private_home(None))
        home = BenchmarkHome(given.path, stack.enter_context(_database(options.database)))
        server = stack.enter_context(private_server(home, console))
        stack.enter_context(temporary_settings({PREFECT_API_URL: server.api_url}))
        for name in options.only or CONTESTANTS:
            contestant = CONTESTANTS[name]
            found = asyncio.run(measure(server, home, contestant, options))
            table.add_row(
                contestant.name,
                str(options.pending),
                str(len(found)),
                *(f"{each:.2f}" for each in (
                    statistics.median(found), percentile(found, 95), max(found)
                )),
            )  # fmt: skip
        if (home.worker_home / "store.db").exists():
            with Store.open(f"sqlite:///{home.worker_home / 'store.db'}") as store:
                for name, seconds in steps(home.path / "ours.txt", store).items():
                    console.print(f"{name}: {seconds:.2f} s (median)")
    console.print(table)


if __name__ == "__main__":
    main()
