"""Limits that have nothing to do with devices: pauses, concurrency limits, the host around them."""

from __future__ import annotations

from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.hosts import Host
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.core.planning import hosting
from xonar_prefect.core.planning.hosting import HostRoom


class Admission:
    """Counts down the limits as one decision releases trainings.

    Args:
        limits: The limits.
        host: The host.
        now_s: The time of the decision.
    """

    def __init__(self, limits: Limits, host: Host | None = None, now_s: float = 0.0) -> None:
        self._limits = limits
        self._now_s = now_s
        self._host = HostRoom(host or Host(), limits)
        self._pool = limits.free_slots
        self._worker = limits.free_worker_slots
        self._starts = limits.free_starts
        self._queues = dict(limits.free_slots_by_queue)
        self._deployments = dict(limits.free_slots_by_deployment)
        self._without_device = limits.free_slots_without_device

    def obstacle(self, training: Training) -> ReasonCode | None:
        """Return which limit keeps the training, if one does."""
        if self._limits.pool_paused:
            return ReasonCode.POOL_PAUSED
        if training.queue in self._limits.paused_queues:
            return ReasonCode.QUEUE_PAUSED
        if _used_up(self._pool):
            return ReasonCode.POOL_LIMIT
        if _used_up(self._worker) or (training.gpus == 0 and _used_up(self._without_device)):
            return ReasonCode.WORKER_LIMIT
        if _used_up(self._queues.get(training.queue)):
            return ReasonCode.QUEUE_LIMIT
        if training.deployment is not None and _used_up(self._deployments.get(training.deployment)):
            return ReasonCode.DEPLOYMENT_LIMIT
        if _used_up(self._starts):
            return ReasonCode.STARTS_LIMITED
        return self._host.obstacle(training)

    def use(self, training: Training) -> None:
        """Count the training's release against every limit that it falls under."""
        self._pool = _one_less(self._pool)
        self._worker = _one_less(self._worker)
        self._starts = _one_less(self._starts)
        if training.gpus == 0:
            self._without_device = _one_less(self._without_device)
        _take_one(self._queues, training.queue)
        if training.deployment is not None:
            _take_one(self._deployments, training.deployment)
        self._host.use(training)

    def keep_host_for(self, training: Training, code: ReasonCode) -> None:
        """Keep the host's room for a training that it has no room for, if it is overdue."""
        waited_s = self._now_s - training.submitted_at_s
        if code in hosting.CODES and waited_s > self._limits.max_wait_seconds:
            self._host.keep_for(training)

    @property
    def keeps_host(self) -> bool:
        """Whether some of the host is kept for somebody, so that age decides who may have it."""
        return self._host.is_kept

    def never(self, training: Training) -> str | None:
        """Say why this host can never take the training, if so."""
        return self._host.never(training)

    def sentence(self, code: ReasonCode, training: Training) -> str:
        """Return in a sentence what the obstacle means."""
        if code in hosting.CODES:
            return self._host.sentence(code, training)
        if code is ReasonCode.WORKER_LIMIT and not _used_up(self._worker):
            return "As many runs without a device are running as this worker may start at once."
        return {
            ReasonCode.POOL_PAUSED: "The work pool is paused.",
            ReasonCode.QUEUE_PAUSED: f"The work queue '{training.queue}' is paused.",
            ReasonCode.POOL_LIMIT: "The work pool's concurrency limit is reached.",
            ReasonCode.WORKER_LIMIT: "The limit of this worker is reached.",
            ReasonCode.STARTS_LIMITED: (
                "As many trainings are starting as this worker may start at once; it is the next "
                "ones' turn when these have begun."
            ),
            ReasonCode.QUEUE_LIMIT: (
                f"The concurrency limit of the work queue '{training.queue}' is reached."
            ),
            ReasonCode.DEPLOYMENT_LIMIT: "The concurrency limit of its deployment is reached.",
        }[code]


def _used_up(free: int | None) -> bool:
    return free is not None and free <= 0


def _one_less(free: int | None) -> int | None:
    return None if free is None else free - 1


def _take_one(free: dict[str, int], name: str) -> None:
    if name in free:
        free[name] -= 1
