"""Shows decisions where Prefect users look: state name, labels, artifact, log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from xonar_prefect.artifacts import decision_markdown
from xonar_prefect.core.models import Hold, ReasonCode, Refuse, Release
from xonar_prefect.worker import labels
from xonar_prefect.worker.claims import AWAITING_GPU, Claims

DECISION_ARTIFACT = "xonar-decision"

_logger = logging.getLogger(__name__)


class Explanations:
    """Tells each run once what was decided, and again when the kind of reason changes."""

    def __init__(
        self,
        client: PrefectClient,
        claims: Claims,
        *,
        visible_held: int,
        mark_after_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._claims = claims
        self._visible_held = visible_held
        self._mark_after_seconds = mark_after_seconds
        self._clock = clock
        self._held_since_s: dict[str, float] = {}
        self._shown: dict[str, ReasonCode] = {}
        self._marked: dict[str, ReasonCode] = {}

    def forget(self, run_id: str) -> None:
        """Drop what is remembered of a run that is no longer held."""
        self._held_since_s.pop(run_id, None)
        self._shown.pop(run_id, None)
        self._marked.pop(run_id, None)

    def keep_only(self, run_ids: frozenset[str]) -> None:
        """Forget every run that is not held any more."""
        for run_id in set(self._held_since_s) - run_ids:
            self.forget(run_id)

    async def hold(self, hold: Hold, flow_run: FlowRun, *, position: int, markable: bool) -> bool:
        """Show why a run is held, if it is visible and was held long enough.

        Args:
            hold: The decision.
            flow_run: The run, as the queue showed it.
            position: Its place among the held runs; only the first are shown.
            markable: Whether claiming it to mark it does no harm.

        Returns:
            Whether its state was written, so that the queue must be read again.
        """
        run_id = hold.training.run_id
        since = self._held_since_s.setdefault(run_id, self._clock())
        if position >= self._visible_held:
            return False
        if self._shown.get(run_id) != hold.code:
            _logger.info("Holding %r: %s", hold.training.name, hold.reason)
            await self._label(
                flow_run, {labels.REASON_CODE: hold.code.value, labels.REASON: hold.reason}
            )
            self._shown[run_id] = hold.code
        long_enough = self._clock() - since >= self._mark_after_seconds
        if not markable or not long_enough or self._marked.get(run_id) == hold.code:
            return False
        if flow_run.state_name == AWAITING_GPU and run_id not in self._marked:
            # Marked by another worker or in an earlier life: do not take turns in rewriting it.
            self._marked[run_id] = hold.code
            return False
        marked = await self._claims.mark_held(flow_run, hold.reason)
        if marked:
            self._marked[run_id] = hold.code
            await self._artifact(flow_run, hold)
        return marked

    async def release(self, release: Release, flow_run: FlowRun, partners: tuple[str, ...]) -> None:
        """Show where a run goes and beside whom."""
        self.forget(release.training.run_id)
        _logger.info("Releasing %r: %s", release.training.name, release.reason)
        values: dict[str, bool | int | float | str] = {
            labels.REASON_CODE: release.code.value,
            labels.REASON: release.reason,
            labels.DEVICES: ", ".join(release.devices),
            labels.PARTNER: ", ".join(partners),
        }
        if release.predicted_slowdown is not None:
            values[labels.PREDICTED_SLOWDOWN] = f"{release.predicted_slowdown:.3f}"
        await self._label(flow_run, values)
        await self._artifact(flow_run, release)

    async def refuse(self, refuse: Refuse, flow_run: FlowRun) -> bool:
        """End a run that can never start here, and say why."""
        self.forget(refuse.training.run_id)
        refused = await self._claims.refuse(flow_run, refuse.reason)
        if refused:
            _logger.warning("Refusing %r: %s", refuse.training.name, refuse.reason)
            values: dict[str, bool | int | float | str] = {
                labels.REASON_CODE: refuse.code.value,
                labels.REASON: refuse.reason,
            }
            await self._label(flow_run, values)
            await self._artifact(flow_run, refuse)
        return refused

    async def _label(self, flow_run: FlowRun, values: dict[str, bool | int | float | str]) -> None:
        try:
            await self._client.update_flow_run_labels(flow_run.id, values)
        except ObjectNotFound:
            self.forget(str(flow_run.id))

    async def _artifact(self, flow_run: FlowRun, decision: Release | Hold | Refuse) -> None:
        await self._client.create_artifact(
            ArtifactCreate(
                key=DECISION_ARTIFACT,
                type="markdown",
                description=decision.reason,
                data=decision_markdown(decision),
                flow_run_id=flow_run.id,
            )
        )
