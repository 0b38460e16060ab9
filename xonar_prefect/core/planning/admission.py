"""Limits that have nothing to do with devices: pauses and concurrency limits."""

from __future__ import annotations

from xonar_prefect.core.models import Limits, ReasonCode, Training


class Admission:
    """Counts down the limits as one decision releases trainings."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = limits.free_slots
        self._worker = limits.free_worker_slots
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
        return None

    def use(self, training: Training) -> None:
        """Count the training's release against every limit that it falls under."""
        self._pool = _one_less(self._pool)
        self._worker = _one_less(self._worker)
        if training.gpus == 0:
            self._without_device = _one_less(self._without_device)
        _take_one(self._queues, training.queue)
        if training.deployment is not None:
            _take_one(self._deployments, training.deployment)

    def sentence(self, code: ReasonCode, training: Training) -> str:
        """Return in a sentence what the obstacle means."""
        if code is ReasonCode.WORKER_LIMIT and not _used_up(self._worker):
            return "As many runs without a device are running as this worker may start at once."
        return {
            ReasonCode.POOL_PAUSED: "The work pool is paused.",
            ReasonCode.QUEUE_PAUSED: f"The work queue '{training.queue}' is paused.",
            ReasonCode.POOL_LIMIT: "The work pool's concurrency limit is reached.",
            ReasonCode.WORKER_LIMIT: "The limit of this worker is reached.",
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
