"""Growing pauses between attempts at something that fails."""

from __future__ import annotations

from collections.abc import Callable

_LONGEST_PAUSE_SECONDS = 60.0


class Backoff:
    """Says when to try again: at once after the first failure, then after 1 s, 2 s, 4 s ... 60 s.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_seconds = 0.0
        self._due_at_s: float | None = None

    def plan(self) -> None:
        """Plan an attempt after the present pause, unless one is planned already."""
        if self._due_at_s is None:
            self._due_at_s = self._clock() + self._pause_seconds
            self._pause_seconds = min(max(1.0, 2 * self._pause_seconds), _LONGEST_PAUSE_SECONDS)

    def take(self) -> bool:
        """Tell whether a planned attempt is due; it is no longer planned then."""
        if self._due_at_s is None or self._clock() < self._due_at_s:
            return False
        self._due_at_s = None
        return True

    def reset(self) -> None:
        """Forget all failures: the cause is gone."""
        self._pause_seconds = 0.0
        self._due_at_s = None
