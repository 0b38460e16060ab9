"""Artifacts of ended runs: which are old, and their removal, a page at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import Artifact
from prefect.client.schemas.sorting import ArtifactSort
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.codec import OBSERVATION_ARTIFACT_TYPE

PAGE = 50

_OURS = "xonar-"
# The profile and its card stay: they are what a lost store is rebuilt from, and what people see.
_PROFILE = "xonar-profile"
_FOR_PEOPLE = ("markdown", "table", "link", "image", "progress")

_logger = logging.getLogger(__name__)

FOR_PEOPLE = ArtifactFilter(
    key=ArtifactFilterKey(like_=_OURS), type=ArtifactFilterType(any_=list(_FOR_PEOPLE))
)
"""What the pages of runs show of ours."""
OBSERVATIONS = ArtifactFilter(type=ArtifactFilterType(any_=[OBSERVATION_ARTIFACT_TYPE]))
"""Measured co-runs."""


class PoolRuns:
    """Asks the server about runs of one pool."""

    def __init__(self, client: PrefectClient, pool: str) -> None:
        self._client = client
        self._pool = pool

    async def unfinished(self, run_ids: Collection[str]) -> frozenset[str]:
        """Return those that have not ended; a run that was deleted has."""
        return frozenset(
            run_id for run_id, (is_final, _) in (await self._read(run_ids)).items() if not is_final
        )

    async def not_to_touch(self, run_ids: Collection[str]) -> frozenset[str]:
        """Return those that have not ended, and those of other pools."""
        return frozenset(
            run_id
            for run_id, (is_final, pool) in (await self._read(run_ids)).items()
            if not is_final or pool != self._pool
        )

    async def _read(self, run_ids: Collection[str]) -> dict[str, tuple[bool, str | None]]:
        wanted = [UUID(run_id) for run_id in run_ids]
        if not wanted:
            return {}
        runs = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=wanted))
        )
        return {
            str(run.id): (run.state is not None and run.state.is_final(), run.work_pool_name)
            for run in runs
        }


class OldArtifacts:
    """Removes artifacts of ended runs some time after they were made, the oldest first.

    The server lists the newest first and can count; so the oldest are read from the end, before
    those that this pass has looked at and kept.

    Args:
        client: Of the Prefect server.
        wanted: Which artifacts.
        not_to_touch: Of these runs, returns whose artifacts must stay.
        clock: The time.
        keep_seconds: How long they are kept.
    """

    def __init__(
        self,
        client: PrefectClient,
        wanted: ArtifactFilter,
        not_to_touch: Callable[[Collection[str]], Awaitable[frozenset[str]]],
        *,
        clock: Callable[[], float],
        keep_seconds: float,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._not_to_touch = not_to_touch
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._kept = 0

    async def step(self) -> bool:
        """Look at one page; return whether older ones were found that there may be more of.

        Raises:
            httpx.HTTPError: The server cannot be asked.
        """
        page, is_last = await self._oldest_page()
        old = [artifact for artifact in page if self._is_old(artifact)]
        untouchable = await self._not_to_touch(
            {str(artifact.flow_run_id) for artifact in old if artifact.flow_run_id}
        )
        to_remove = [each for each in old if _may_go(each, untouchable)]
        for artifact in to_remove:
            with contextlib.suppress(ObjectNotFound):  # another worker was faster
                await self._client.delete_artifact(artifact.id)
        if to_remove:
            _logger.debug("Removed %d artifacts of old runs.", len(to_remove))
        self._kept += len(page) - len(to_remove)
        goes_on = not is_last and len(old) == len(page)
        if not goes_on:
            self._kept = 0
        return goes_on

    async def _oldest_page(self) -> tuple[list[Artifact], bool]:
        """Return the oldest that this pass has not looked at, and whether they are all there is."""
        response = await self._client.request(
            "POST",
            "/artifacts/count",
            json={"artifacts": self._wanted.model_dump(mode="json", exclude_unset=True)},
        )
        left = int(response.json()) - self._kept
        if left <= 0:
            return [], True
        page = await self._client.read_artifacts(
            artifact_filter=self._wanted,
            sort=ArtifactSort.CREATED_DESC,
            limit=min(PAGE, left),
            offset=max(0, left - PAGE),
        )
        return page, left <= PAGE

    def _is_old(self, artifact: Artifact) -> bool:
        created = artifact.created
        return created is not None and created.timestamp() < self._clock() - self._keep_seconds


def _may_go(artifact: Artifact, untouchable: frozenset[str]) -> bool:
    key = artifact.key or ""
    is_ours = key.startswith(_OURS) and not key.startswith(_PROFILE)
    return is_ours and str(artifact.flow_run_id) not in untouchable
