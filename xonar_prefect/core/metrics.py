"""How well a queue of trainings was served."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

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


def finish_time_fairness(
    served: Sequence[Served], solo_seconds: Sequence[float], gpus: Sequence[int], devices: int
) -> list[float]:
    """Return for each training its JCT / its JCT with an equal share of the devices.

    The share is one n-th, n being how many trainings were there on average from its submission to
    its end; with less than it needs, a training is slower in proportion. At most 1 is fair.
    Trainings that need no time have no figure and are left out.

    Args:
        served: Times of the trainings.
        solo_seconds: How long each needs alone.
        gpus: How many devices each needs.
        devices: How many there are.
    """
    changes = sorted(
        [(each.submitted_at_s, 1) for each in served]
        + [(each.finished_at_s, -1) for each in served]
    )
    area_at: dict[float, float] = {}
    area, present, before = 0.0, 0, 0.0
    for time, change in changes:
        area += present * (time - before)
        area_at[time] = area
        present, before = present + change, time
    ratios = []
    for each, alone_s, needed in zip(served, solo_seconds, gpus, strict=True):
        if alone_s <= 0:
            continue
        present_on_average = (
            area_at[each.finished_at_s] - area_at[each.submitted_at_s]
        ) / each.jct_s
        share_s = alone_s * max(1.0, needed * present_on_average / devices)
        ratios.append(each.jct_s / share_s)
    return ratios


def student_t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, to three digits.

    From three degrees of freedom on by the expansion of Cornish and Fisher.

    >>> [round(student_t_quantile(degrees), 2) for degrees in (1, 2, 3, 9, 199)]
    [12.71, 4.3, 3.18, 2.26, 1.97]

    Raises:
        InvalidValueError: There is not one degree of freedom.
    """
    if degrees < 1:
        raise InvalidValueError("degrees", degrees, "at least 1")
    if degrees <= 2:
        return (12.7062, 4.3027)[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(degrees) ** power for power, term in enumerate(terms))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval (low, high) of the mean; None of fewer than two values."""
    if len(values) < 2:
        return None
    half = student_t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    middle = fmean(values)
    return (middle - half, middle + half)
