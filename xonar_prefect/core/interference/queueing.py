"""The prior: trainings on a device as customers of a closed queueing network.

There is one processor-sharing station (the device) and a delay (their idle time). A training with
active fraction `u` finds `L` others at the station on average when it arrives, so
`slowdown = 1 + (1 + e) * u * L`. Sharing itself costs a little (context switches, caches): `e`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_SHARING_COST = 0.1


def mean_number_active(fractions: Sequence[float]) -> float:
    """Return how many of these co-located trainings wait for or hold the device on average.

    This is exact mean-value analysis in its closed form: a set A of trainings is at the device
    with a probability proportional to `|A|!` times the product of `u` over A and of `1 - u` over
    the others, so the coefficients of the product of `(1 - u) + u x` are enough: quadratic in the
    number of trainings, where the recursion over subsets is exponential.

    >>> mean_number_active([0.3])
    0.3
    >>> mean_number_active([0.5, 0.5])
    1.2
    """
    if len(fractions) == 1:  # the usual case, by the same arithmetic
        (fraction,) = fractions
        return fraction / ((1.0 - fraction) + fraction)
    coefficients = [1.0]
    for fraction in fractions:
        stays = [c * (1.0 - fraction) for c in coefficients] + [0.0]
        joins = [0.0] + [c * fraction for c in coefficients]
        coefficients = [a + b for a, b in zip(stays, joins, strict=True)]
    weights = [math.factorial(count) * c for count, c in enumerate(coefficients)]
    return sum(count * weight for count, weight in enumerate(weights)) / sum(weights)


def prior_slowdown(
    active_fraction: float, partners: Sequence[float], sharing_cost: float = FIRST_SHARING_COST
) -> float:
    """Return the slowdown of a training beside partners with these active fractions.

    >>> prior_slowdown(0.5, [0.5], sharing_cost=0.0)
    1.25
    >>> prior_slowdown(0.5, [0.5, 0.5], sharing_cost=0.0)
    1.6
    """
    return 1.0 + (1.0 + sharing_cost) * active_fraction * mean_number_active(partners)
