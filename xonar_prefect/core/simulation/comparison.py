"""Figures of simulated queues, and how policies differ on the same queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xonar_prefect.core.metrics import finish_time_fairness, mean, mean_interval, percentile
from xonar_prefect.core.simulation.result import Run

TIMES = ("average_jct_s", "p95_jct_s", "makespan_s", "average_queueing_delay_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """How one policy served one queue; None where nothing completed.

    Attributes:
        queue: Name of the queue.
        average_jct_s: Mean job completion time.
        p95_jct_s: Its tail.
        makespan_s: First submission to last end.
        average_queueing_delay_s: Mean time from submission to start.
        average_fairness: Mean finish-time fairness; at most 1 is fair.
        worst_fairness: The worst of it.
        completed: Trainings that completed.
        refused: Trainings that no device can take; they are in no other figure.
        failed: Trainings that ran out of memory as often as they may; likewise.
        out_of_memory: How often one ran out of memory.
        decisions: How often the policy was asked.
        seconds_per_decision: What that took, on average.
        jcts_s: The job completion time of each that completed.
    """

    queue: str
    average_jct_s: float | None
    p95_jct_s: float | None
    makespan_s: float | None
    average_queueing_delay_s: float | None
    average_fairness: float | None
    worst_fairness: float | None
    completed: int
    refused: int
    failed: int
    out_of_memory: int
    decisions: int
    seconds_per_decision: float | None
    jcts_s: tuple[float, ...] = ()


def figures_of(queue: str, run: Run, devices: int) -> QueueFigures:
    """Return the figures of a run on so many devices."""
    served = [outcome.served for outcome in run.outcomes]
    ratios = finish_time_fairness(
        served,
        [outcome.submission.solo_seconds for outcome in run.outcomes],
        [outcome.submission.gpus for outcome in run.outcomes],
        devices,
    )
    service = run.service
    seconds = run.decision_seconds
    return QueueFigures(
        queue=queue,
        average_jct_s=service.average_jct_s,
        p95_jct_s=service.p95_jct_s,
        makespan_s=service.makespan_s,
        average_queueing_delay_s=service.average_queueing_delay_s,
        average_fairness=mean(ratios),
        worst_fairness=max(ratios, default=None),
        completed=len(served),
        refused=len(run.refused),
        failed=len(run.failed),
        out_of_memory=len(run.losses),
        decisions=run.decisions,
        seconds_per_decision=seconds / run.decisions
        if seconds is not None and run.decisions
        else None,
        jcts_s=tuple(each.jct_s for each in served),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a policy differs from another one over the same queues, as a share of the other.

    Attributes:
        mean: Mean of the paired differences / mean of the other policy.
        low: Lower end of the 95 % interval; None for one queue.
        high: Its upper end.
    """

    mean: float
    low: float | None
    high: float | None


def difference(
    ours: Sequence[QueueFigures], others: Sequence[QueueFigures], figure: str
) -> Difference | None:
    """Return how we differ in a figure over the queues in which it is known of both.

    Args:
        ours: Figures of our queues.
        others: Figures of the other policy.
        figure: Name of the figure.

    Returns:
        None when there is no such queue, or the other's mean is zero.
    """
    theirs = {each.queue: getattr(each, figure) for each in others}
    pairs = [
        (getattr(each, figure), theirs[each.queue])
        for each in ours
        if getattr(each, figure) is not None and theirs.get(each.queue) is not None
    ]
    base = mean([other for _, other in pairs])
    if not base:
        return None
    shares = [(our - other) / base for our, other in pairs]
    interval = mean_interval(shares)
    low, high = (None, None) if interval is None else interval
    return Difference(mean=mean(shares) or 0.0, low=low, high=high)


def summary(queues: Sequence[QueueFigures]) -> dict[str, Any]:
    """Return a policy's figures over its queues: means of times, sums of counts.

    Of a queue of fewer than twenty the 95th percentile is its last training, so the tail over the
    trainings of all queues is there too, as `p95_jct_over_all_s`.
    """
    total: dict[str, Any] = {}
    for figure in (*TIMES, "average_fairness"):
        known = [getattr(each, figure) for each in queues if getattr(each, figure) is not None]
        total[figure] = mean(known)
    total["p95_jct_over_all_s"] = percentile([jct for each in queues for jct in each.jcts_s], 95)
    worst = [each.worst_fairness for each in queues if each.worst_fairness is not None]
    total["worst_fairness"] = max(worst, default=None)
    for count in ("completed", "refused", "failed", "out_of_memory", "decisions"):
        total[count] = sum(getattr(each, count) for each in queues)
    timed = [each for each in queues if each.seconds_per_decision is not None]
    spent = sum((each.seconds_per_decision or 0.0) * each.decisions for each in timed)
    asked = sum(each.decisions for each in timed)
    total["seconds_per_decision"] = spent / asked if asked else None
    return total


def to_json(policies: Mapping[str, Sequence[QueueFigures]], baseline: str) -> dict[str, Any]:
    """Return the figures of policies, each also against a baseline, as JSON values."""
    found: dict[str, Any] = {}
    for name, queues in policies.items():
        found[name] = summary(queues)
        if name != baseline and baseline in policies:
            against = {figure: difference(queues, policies[baseline], figure) for figure in TIMES}
            found[name][f"against_{baseline}"] = {
                figure: None if each is None else asdict(each) for figure, each in against.items()
            }
        found[name]["queues"] = [_without_jcts(each) for each in queues]
    return found


def _without_jcts(figures: QueueFigures) -> dict[str, Any]:
    values = asdict(figures)
    del values["jcts_s"]
    return values
