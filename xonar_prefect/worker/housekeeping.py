"""Removes what has been kept long enough: in the background, a little at a time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

import anyio
import anyio.to_thread
import httpx
from prefect.client.orchestration import PrefectClient

from xonar_prefect.errors import StoreError
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.old_artifacts import FOR_PEOPLE, OBSERVATIONS, OldArtifacts, PoolRuns
from xonar_prefect.worker.old_runs import OldRunDirectories

_ROWS = 200
_DAY_SECONDS = 86_400.0
_BETWEEN_STEPS_SECONDS = 2.0
_BETWEEN_ROUNDS_SECONDS = 6 * 3600.0

_logger = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], Awaitable[bool]]
"""Do a little; return whether there is more to do."""


class Housekeeping:
    """Does its chores one after the other, in small steps, and then rests for hours.

    Args:
        chores: The chores, by what they remove.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        chores: Mapping[str, Step],
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._chores = chores
        self._sleep = sleep

    async def serve(self) -> None:
        """Do all chores again and again, until cancelled; never raise."""
        while True:
            # Before the first round too: a worker that starts has better things to do.
            await self._sleep(_BETWEEN_STEPS_SECONDS)
            for what, step in self._chores.items():
                while await self._try(what, step):
                    await self._sleep(_BETWEEN_STEPS_SECONDS)
            await self._sleep(_BETWEEN_ROUNDS_SECONDS)

    @staticmethod
    async def _try(what: str, step: Step) -> bool:
        try:
            return await step()
        except (httpx.HTTPError, StoreError, OSError) as error:
            _logger.warning("Old %s are not removed this time: %s", what, error)
        except Exception:
            _logger.exception("Old %s are not removed this time.", what)
        return False


def housekeeping(
    client: PrefectClient,
    store: Store,
    settings: XonarSettings,
    *,
    pool: str,
    clock: Callable[[], float],
) -> Housekeeping:
    """Return the chores that the settings ask for."""
    runs = PoolRuns(client, pool)
    chores: dict[str, Step] = {}
    if keep := _seconds(settings.keep_runs_days):
        chores["run directories"] = OldRunDirectories(
            settings.home / "runs", store, runs.unfinished, clock=clock, keep_seconds=keep
        ).step
    if keep := _seconds(settings.keep_artifacts_days):
        chores["artifacts"] = OldArtifacts(
            client, FOR_PEOPLE, runs.not_to_touch, clock=clock, keep_seconds=keep
        ).step
    if keep := _seconds(settings.keep_ledger_days):
        chores["ledger entries"] = partial(_remove_rows, store.remove_ended, clock, keep)
    if keep := _seconds(settings.keep_observations_days):
        chores["observations"] = partial(_remove_rows, store.remove_observations, clock, keep)
        chores["artifacts of observations"] = OldArtifacts(
            client, OBSERVATIONS, runs.not_to_touch, clock=clock, keep_seconds=keep
        ).step
    return Housekeeping(chores)


def _seconds(days: float) -> float:
    return days * _DAY_SECONDS


async def _remove_rows(
    remove: Callable[[float, int], int], clock: Callable[[], float], keep_seconds: float
) -> bool:
    removed = await anyio.to_thread.run_sync(remove, clock() - keep_seconds, _ROWS)
    return removed == _ROWS
