"""A server that fails between the claim and the launch of a training ends no training."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun

from tests.worker.conftest import Pool, Working
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState

pytestmark = pytest.mark.server

Ledger = Callable[[FlowRun], tuple[LedgerEntry, ...]]


class FailsOnce(httpx.AsyncBaseTransport):
    """Passes requests on, but fails at the first that gives a claimed run its labels."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.has_failed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.has_failed or not (request.method == "PATCH" and b"worker.name" in request.content):
            return await self._inner.handle_async_request(request)
        self.has_failed = True
        return httpx.Response(httpx.codes.INTERNAL_SERVER_ERROR)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_a_claimed_run_goes_back_into_the_queue_and_is_started_later(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working() as worker:
        client = worker.client._client
        client._transport = fails = FailsOnce(client._transport)
        run = await pool.succeed()

        async def is_over() -> bool:
            slots = {entry.state for entry in ledger(run)}
            return await pool.state(run) == "Completed" and slots == {SlotState.ENDED}

        await eventually(is_over)
    states = {state.name for state in await pool.client.read_flow_run_states(run.id)}
    assert fails.has_failed
    assert "Crashed" not in states
    assert len(pool.starts(run)) == 1
