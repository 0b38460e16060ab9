"""What happens between the exit of a training and the start of the next, beside a long queue.

How long it takes is measured by `make bench` (`tests/benchmarks/exit_to_start.py`); here stands
what makes it short.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun

from tests.worker.conftest import Pool, Working
from tests.worker.trainings import succeed
from tests.worker.waiting import eventually
from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker import queue_pages, queue_picture
from xonar_prefect.worker.worker import XonarWorker

pytestmark = pytest.mark.server

PENDING = 12
PAGE = 3  # so that this is a long queue; the server's cap is 200
EXITS = 3
QUEUE = "the queue, or how long it is"

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True)
class Request:
    at_s: float
    what: str


def note_requests(worker: XonarWorker) -> list[Request]:
    client = worker.client._client
    send = client.send
    requests: list[Request] = []

    async def noting(request: httpx.Request, *arguments: Any, **options: Any) -> Any:
        what = _ID.sub("ID", request.url.path.removeprefix("/api"))
        if b'"next_scheduled_start_time":{' in request.content.replace(b" ", b""):
            what = QUEUE
        requests.append(Request(time.time(), what))
        return await send(request, *arguments, **options)

    client.send = noting  # type: ignore[method-assign]
    return requests


def gaps(pool: Pool, runs: list[FlowRun], settings: XonarSettings) -> Iterator[tuple[float, float]]:
    """Yield (exit, next start) of the trainings that ran one after the other."""
    starts = sorted(
        (pool.directory / f"{run.id}.started").stat().st_mtime for run in runs if pool.starts(run)
    )
    exits = sorted(path.stat().st_mtime for path in (settings.home / "runs").glob("*/exit.json"))
    for ended in exits:
        later = [start for start in starts if start > ended]
        if later:
            yield ended, later[0]


async def test_a_launch_asks_for_its_own_run_only_however_long_the_queue_is(
    pool: Pool, working: Working, settings: XonarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_pages, queue_picture):
        monkeypatch.setattr(module, "PAGE", PAGE)
    variables = {"command": succeed(pool.directory)}
    await pool.deploy("plain")
    submitting = (pool.submit(job_variables=variables) for _ in range(PENDING))
    runs = await asyncio.gather(*submitting)
    patient = settings.model_copy(update={"poll_seconds": 600.0, "mark_after_seconds": 600.0})
    async with working(settings=patient) as worker:
        requests = note_requests(worker)
        await worker._turns._reading.do_once()  # type: ignore[union-attr]
        await eventually(lambda: len(list((settings.home / "runs").glob("*/exit.json"))) > EXITS)
        await pool.update(is_paused=True)
        await eventually(lambda: len(worker._parts.slots) == 0)
    between = [
        {each.what for each in requests if ended <= each.at_s <= start}
        for ended, start in gaps(pool, runs, settings)
    ]
    assert len(between) >= EXITS
    for asked in between[1:]:  # during the first, the queue may still be read
        assert "/flow_runs/ID/set_state" in asked
        assert QUEUE not in asked
    assert QUEUE in {each.what for each in requests}  # it would have been noticed
