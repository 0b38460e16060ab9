"""A connection on which the queue is read late, or as it was a while ago."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict, deque

import httpx

_REMEMBERED = 8
_LATE_SECONDS = 0.3


class StaleReads(httpx.AsyncBaseTransport):
    """Passes requests on; some readings of many runs are answered with an earlier answer.

    What is read of one run by its id, and every write, passes unchanged: by them a worker has to
    find out.

    Args:
        inner: The real connection.
        dice: Who chooses.
        share: Share of readings that are stale.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, dice: random.Random, share: float) -> None:
        self._inner = inner
        self._dice = dice
        self._share = share
        self._earlier: dict[str, deque[bytes]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self.replayed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/flow_runs/filter"):
            return await self._inner.handle_async_request(request)
        earlier = self._earlier[_question(request)]
        if earlier and self._dice.random() < self._share:
            self.replayed += 1
            return _answer(self._dice.choice(earlier))
        response = await self._inner.handle_async_request(request)
        content = await response.aread()
        await response.aclose()
        if response.status_code != httpx.codes.OK:
            return httpx.Response(response.status_code, content=content)
        earlier.append(content)
        await asyncio.sleep(self._dice.random() * _LATE_SECONDS)
        return _answer(content)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _question(request: httpx.Request) -> str:
    """Return what is asked, whenever it is asked."""
    body = json.loads(request.content)
    body.get("flow_runs", {}).pop("next_scheduled_start_time", None)
    return json.dumps(body, sort_keys=True)


def _answer(content: bytes) -> httpx.Response:
    return httpx.Response(
        httpx.codes.OK, headers={"Content-Type": "application/json"}, content=content
    )
