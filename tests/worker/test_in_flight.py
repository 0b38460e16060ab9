"""Work that can wait steps aside while a training is launched."""

from __future__ import annotations

import asyncio

from tests.worker.waiting import eventually
from xonar_prefect.worker import in_flight
from xonar_prefect.worker.in_flight import LaunchesInFlight


async def test_nobody_steps_aside_where_nothing_is_launched() -> None:
    launches = LaunchesInFlight()
    await launches.step_aside()
    launches.end("never begun")
    await launches.step_aside()
    assert len(launches) == 0


async def test_others_go_on_when_the_last_launch_is_over() -> None:
    launches = LaunchesInFlight()
    launches.begin("a")
    launches.begin("b")
    waiting = asyncio.ensure_future(launches.step_aside())
    await asyncio.sleep(0)
    launches.end("a")
    await asyncio.sleep(0)
    assert (len(launches), waiting.done()) == (1, False)
    launches.end("b")
    await waiting


async def test_a_launch_that_hangs_holds_nobody_up_for_long(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(in_flight, "_MOST_SECONDS", 0.01)
    launches = LaunchesInFlight()
    launches.begin("hangs")
    waiting = asyncio.ensure_future(launches.step_aside())
    await eventually(waiting.done)
