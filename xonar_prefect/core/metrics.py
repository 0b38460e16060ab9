"""How well a queue of trainings was served."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xonar_prefect.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When a training was submitted, started and finished, in seconds on one clock."""

    submitted_at_s: float
    started_at_s: float
    finished_at_s: float

    def __post_init__(self) -> None:
        times = (self.submitted_at_s, self.started_at_s, self.finished_at_s)
        if not all(math.isfinite(time) for time in times) or list(times) != sorted(times):
            expected = "finite, and submission, start and end in this order"
            raise InvalidValueError("times", times, expected)

    @property
    def jct_s(self) -> float:
        """Job completion time: submit to finish."""
        return self.finished_at_s - self.submitted_at_s

    @property
    def queueing_delay_s(self) -> float:
        """Submit to start."""
        return self.started_at_s - self.submitted_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How well a queue was served; unknown (None) for a queue without trainings.

    Attributes:
        average_jct_s: Mean job completion time.
        p95_jct_s: The tail, see `percentile`.
        makespan_s: First submit to last finish.
        average_queueing_delay_s: Mean time from submit to start.
    """

    average_jct_s: float | None
    p95_jct_s: float | None
    makespan_s: float | None
    average_queueing_delay_s: float | None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that at least `percent` per cent of the values do not exceed.

    By the nearest-rank rule: the result is one of the values, never between two of them, and
    of fewer than twenty values the 95th percentile is the largest. None of nothing.

    >>> percentile(range(1, 101), 95), percentile([3.0, 1.0, 2.0], 95)
    (95, 3.0)

    Raises:
        InvalidValueError: `percent` is not in (0, 100].
    """
    if not 0 < percent <= 100:
        raise InvalidValueError("percent", percent, "more than 0 and at most 100")
    if not values:
        return None
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def service(served: Iterable[Served]) -> Service:
    """Return how well these trainings were served."""
    records = tuple(served)
    jcts = [record.jct_s for record in records]
    first = min((record.submitted_at_s for record in records), default=0.0)
    last = max((record.finished_at_s for record in records), default=0.0)
    return Service(
        average_jct_s=mean(jcts),
        p95_jct_s=percentile(jcts, 95),
        makespan_s=last - first if records else None,
        average_queueing_delay_s=mean([record.queueing_delay_s for record in records]),
    )
