"""The active fraction of a step with its uncertainty, one step at a time.

The estimate is the ratio of sums R = sum(active) / sum(wall), not the mean of ratios: a long step
counts for as long as it is. Its standard error is that of a ratio estimator,
std(active - R wall) / (sqrt(n) mean(wall)). Only sums are kept, so a step costs the same however
many came before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xonar_prefect.profiling.window import Window

_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the measured steps say.

    Attributes:
        steps: Number of steps.
        step_seconds: Mean time of a step.
        step_seconds_interval: Its 95 % interval; None with fewer than two measurements.
        active_fraction: Active share of the step; None where it was not measured.
        active_fraction_interval: Its 95 % interval; None with fewer than two measurements.
    """

    steps: int
    step_seconds: float
    step_seconds_interval: tuple[float, float] | None
    active_fraction: float | None
    active_fraction_interval: tuple[float, float] | None


class Estimator:
    """Adds up measured steps; knows when they are enough."""

    def __init__(self) -> None:
        self._samples = 0
        self._steps = 0
        self._wall = self._active = 0.0
        self._wall_squares = self._active_squares = self._products = 0.0
        self._active_known = True

    @property
    def steps(self) -> int:
        """Number of steps added."""
        return self._steps

    def add(self, wall_seconds: float, active_seconds: float | None, steps: int = 1) -> None:
        """Add a measurement over so many steps; `active_seconds` is None where unknown."""
        self._samples += 1
        self._steps += steps
        self._wall += wall_seconds
        self._wall_squares += wall_seconds * wall_seconds
        if active_seconds is None:
            self._active_known = False
            return
        self._active += active_seconds
        self._active_squares += active_seconds * active_seconds
        self._products += active_seconds * wall_seconds

    def settled(self, window: Window) -> bool:
        """Whether the rule of the window is met.

        Where the active time is unknown, the step time must settle to the same relative width.
        """
        if self._steps >= window.maximum:
            return True
        if self._steps < window.minimum or self._samples < 2:
            return False
        if self._active_known:
            half_width = self._active_half_width()
        else:
            half_width = self._wall_half_width() / (self._wall / self._samples)
        return half_width <= window.precision

    def estimate(self) -> Estimate | None:
        """Return the estimate; None before the first step."""
        if self._steps == 0 or self._wall <= 0:
            return None
        step_seconds = self._wall / self._steps
        enough = self._samples > 1
        # A measurement may span several steps: its spread is brought to that of one step's mean.
        wall_half_width = self._wall_half_width() * self._samples / self._steps
        active = min(1.0, self._active / self._wall) if self._active_known else None
        return Estimate(
            steps=self._steps,
            step_seconds=step_seconds,
            step_seconds_interval=(
                (max(0.0, step_seconds - wall_half_width), step_seconds + wall_half_width)
                if enough
                else None
            ),
            active_fraction=active,
            active_fraction_interval=(
                (
                    max(0.0, active - self._active_half_width()),
                    min(1.0, active + self._active_half_width()),
                )
                if enough and active is not None
                else None
            ),
        )

    def _active_half_width(self) -> float:
        ratio = self._active / self._wall
        residuals = (
            self._active_squares - 2 * ratio * self._products + ratio * ratio * self._wall_squares
        )
        spread = math.sqrt(max(0.0, residuals) / max(1, self._samples - 1))
        return _Z95 * spread * math.sqrt(self._samples) / self._wall

    def _wall_half_width(self) -> float:
        n = self._samples
        variance = (self._wall_squares - self._wall * self._wall / n) / max(1, n - 1)
        return _Z95 * math.sqrt(max(0.0, variance) / n)
