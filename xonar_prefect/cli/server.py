"""The Prefect server as commands use it: reached, or a sentence that says why not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from xonar_prefect.errors import ServerUnreachableError, WorkPoolError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool

_PAGE = 200  # the server's cap


@asynccontextmanager
async def connected() -> AsyncIterator[PrefectClient]:
    """Talk to the configured server.

    Raises:
        ServerUnreachableError: None is configured, or it does not answer. (Prefect itself would
            start a temporary server, which no worker shares.)
    """
    import httpx
    from prefect import get_client
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if not url:
        raise ServerUnreachableError(None)
    try:
        async with get_client() as client:
            failure = await client.api_healthcheck()
            if failure is not None:
                raise ServerUnreachableError(url, _cause(failure)) from failure
            yield client
    except httpx.HTTPStatusError:
        raise
    except httpx.HTTPError as error:
        raise ServerUnreachableError(url, _cause(error)) from error


async def xonar_pools(client: PrefectClient) -> list[WorkPool]:
    """Return the pools of our type, ordered by name."""
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterType

    from xonar_prefect.worker.worker import WORKER_TYPE

    ours = WorkPoolFilter(type=WorkPoolFilterType(any_=[WORKER_TYPE]))
    pools: list[WorkPool] = []
    while True:
        page = await client.read_work_pools(work_pool_filter=ours, limit=_PAGE, offset=len(pools))
        pools += page
        if len(page) < _PAGE:
            return sorted(pools, key=lambda pool: pool.name)


async def xonar_pool(client: PrefectClient, name: str) -> WorkPool | None:
    """Return the pool of this name; None when there is none.

    Raises:
        WorkPoolError: It has another type.
    """
    from prefect.exceptions import ObjectNotFound

    from xonar_prefect.worker.worker import WORKER_TYPE

    try:
        pool = await client.read_work_pool(name)
    except ObjectNotFound:
        return None
    if pool.type != WORKER_TYPE:
        raise WorkPoolError(
            f"Work pool {name!r} is of type {pool.type!r}, not {WORKER_TYPE!r}; choose another "
            "name, and `xonar pool create` makes a pool of that name."
        )
    return pool


async def existing_xonar_pool(client: PrefectClient, name: str) -> WorkPool:
    """Return the pool of this name.

    Raises:
        WorkPoolError: There is none, or it has another type.
    """
    pool = await xonar_pool(client, name)
    if pool is None:
        raise WorkPoolError(
            f"There is no work pool {name!r}; create it with `xonar pool create {name}`."
        )
    return pool


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
