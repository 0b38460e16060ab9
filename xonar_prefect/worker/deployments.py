"""The deployments of held runs, read many at once and kept for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.responses import DeploymentResponse

from xonar_prefect.worker.limits import PAGE, deployment_limit

_FRESH_SECONDS = 30.0


class Deployments:
    """Remembers deployments; a deleted one is remembered as missing.

    Args:
        client: Of the Prefect server.
        clock: The time in seconds.
    """

    def __init__(self, client: PrefectClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[UUID, DeploymentResponse | None] = {}
        self._read_at_s: dict[UUID, float] = {}
        self._has_changed = False

    def get(self, deployment_id: UUID | None) -> DeploymentResponse | None:
        """Return a deployment as it was read last; None for none, deleted, or never read."""
        return None if deployment_id is None else self._known.get(deployment_id)

    def is_deleted(self, deployment_id: UUID | None) -> bool:
        """Tell whether there was no such deployment any more when it was read last."""
        return deployment_id in self._known and self._known[deployment_id] is None

    async def read(self, deployment_id: UUID | None) -> DeploymentResponse | None:
        """Return a deployment, from the server only if it is not known."""
        if deployment_id is not None and deployment_id not in self._known:
            await self.renew([deployment_id])
        return self.get(deployment_id)

    async def read_now(self, deployment_id: UUID | None) -> DeploymentResponse | None:
        """Return a deployment as it is at this moment; None for none or deleted."""
        if deployment_id is not None:
            await self._read([deployment_id], self._clock())
        return self.get(deployment_id)

    async def renew(self, deployment_ids: Iterable[UUID]) -> None:
        """Read those that are not known, were not read lately, or have a limit."""
        now = self._clock()
        due = [id_ for id_ in dict.fromkeys(deployment_ids) if self._is_due(id_, now)]
        for begin in range(0, len(due), PAGE):
            await self._read(due[begin : begin + PAGE], now)

    def have_changed(self) -> bool:
        """Tell whether one that was known has been found to be another since the last time."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def keep_only(self, deployment_ids: Iterable[UUID]) -> None:
        """Forget all others."""
        for id_ in self._known.keys() - set(deployment_ids):
            del self._known[id_], self._read_at_s[id_]

    def _is_due(self, id_: UUID, now: float) -> bool:
        known = self._known.get(id_)
        age = now - self._read_at_s.get(id_, -_FRESH_SECONDS)
        # A limit that somebody changes must hold soon.
        return age >= _FRESH_SECONDS or (
            known is not None and deployment_limit(known) is not None and age > 0
        )

    async def _read(self, ids: Sequence[UUID], now: float) -> None:
        found = {
            deployment.id: deployment
            for deployment in await self._client.read_deployments(
                deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=list(ids))),
                limit=PAGE,
            )
        }
        for id_ in ids:
            new = found.get(id_)
            self._has_changed |= id_ in self._known and _said(self._known[id_]) != _said(new)
            self._known[id_] = new
            self._read_at_s[id_] = now


def _said(deployment: DeploymentResponse | None) -> object:
    """Return what a training is made from; a deployment changes in other ways all the time."""
    if deployment is None:
        return None
    return (
        deployment.entrypoint,
        deployment.job_variables,
        deployment.parameter_openapi_schema,
        deployment_limit(deployment) is None,
    )
