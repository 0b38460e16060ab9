"""When a measurement starts to count and when it may stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xonar_prefect.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rule by which steps are dropped, measured and found to be enough.

    Attributes:
        warm_up: First steps that do not count: they trace, compile and fill caches.
        minimum: Least number of measured steps.
        maximum: Most measured steps; then the estimate is taken as it stands.
        precision: Half width of the 95 % interval of the active fraction that is good enough.
    """

    warm_up: int = 3
    minimum: int = 10
    maximum: int = 100
    precision: float = 0.05

    def __post_init__(self) -> None:
        if self.warm_up < 0:
            raise InvalidValueError("warm_up", self.warm_up, "zero or greater")
        if self.minimum < 2:
            raise InvalidValueError("minimum", self.minimum, "at least 2, to know the spread")
        if self.maximum < self.minimum:
            raise InvalidValueError("maximum", self.maximum, f"at least minimum ({self.minimum})")
        if not (math.isfinite(self.precision) and 0 < self.precision < 1):
            raise InvalidValueError("precision", self.precision, "between 0 and 1")
