"""How long a finished training would have taken alone, for those of its kind that come later."""

from __future__ import annotations

from xonar_prefect.core.ledger import CoRun, LedgerEntry


def duration_alone(entry: LedgerEntry, solo_step_seconds: float | None) -> float | None:
    """Return the time from launch to end, less what its partners cost.

    Args:
        entry: Its release.
        solo_step_seconds: Its step time alone; None where unknown.

    Returns:
        None for a training that did not end well: it may have stopped anywhere.
    """
    if entry.exit_code != 0 or entry.launched_at_s is None or entry.ended_at_s is None:
        return None
    elapsed = entry.ended_at_s - entry.launched_at_s
    lost = sum(_lost_seconds(window, solo_step_seconds) for window in entry.co_runs)
    return max(0.0, elapsed - lost)


def _lost_seconds(window: CoRun, solo_step_seconds: float | None) -> float:
    if not window.partners:
        return 0.0
    if solo_step_seconds is not None:
        return max(0.0, window.seconds - window.steps * solo_step_seconds)
    if window.predicted_slowdown is not None:
        return window.seconds * (1.0 - 1.0 / max(1.0, window.predicted_slowdown))
    return 0.0
