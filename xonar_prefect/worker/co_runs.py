"""What sharing really costs: step times from progress reports, by the partners of the moment.

A training reports the steps it has done and the time they took. The difference of two reports,
between which the set of partners stayed the same and everybody was stepping, is a window. Windows
alone give the solo step time; windows beside partners divided by it give measured slowdowns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from xonar_prefect.core.ledger import CoRun
from xonar_prefect.run_directory import Status

# Fewer steps are not reported as a measurement: one slow step would decide it.
LEAST_STEPS = 10

_STEPPING = frozenset({"profiling", "training"})


def is_stepping(status: Status | None) -> bool:
    """Tell whether a training is between its first and its last step."""
    return status is not None and status.steps_done > 0 and status.phase in _STEPPING


class CoRunMeter:
    """Accumulates the windows of one training."""

    def __init__(self, co_runs: tuple[CoRun, ...] = ()) -> None:
        self._windows: dict[tuple[str, ...], CoRun] = {run.partners: run for run in co_runs}
        self._last: tuple[frozenset[str], Status] | None = None

    @property
    def co_runs(self) -> tuple[CoRun, ...]:
        """The windows so far, the one alone first."""
        return tuple(self._windows[partners] for partners in sorted(self._windows))

    def expect(self, partners: Mapping[str, str], predicted_slowdown: float | None) -> None:
        """Note what is predicted beside these partners (profile keys by run id)."""
        ids = tuple(sorted(partners))
        window = self._windows.get(ids, CoRun(partners=ids))
        self._windows[ids] = replace(
            window,
            partner_keys=tuple(partners[run_id] for run_id in ids),
            predicted_slowdown=predicted_slowdown,
        )

    def predicted(self, partners: Iterable[str]) -> float | None:
        """Return what was predicted beside these partners (run ids); None where nothing was."""
        window = self._windows.get(tuple(sorted(partners)))
        return None if window is None else window.predicted_slowdown

    def forget(self, partner: str) -> None:
        """A partner that was expected never came."""
        for partners, window in list(self._windows.items()):
            if partner in partners and not window.steps:
                del self._windows[partners]

    def observe(self, status: Status | None, partners: Mapping[str, Status | None]) -> None:
        """Take in one report, with the partners' reports of the same moment.

        A report counts only from the second in a row under the same conditions, so that steps
        during a partner's start-up or after its end fall into no window.
        """
        steady = is_stepping(status) and all(is_stepping(other) for other in partners.values())
        if status is None or not steady:
            self._last = None
            return
        present = frozenset(partners)
        last, self._last = self._last, (present, status)
        if last is None or last[0] != present:
            return
        steps = status.steps_done - last[1].steps_done
        seconds = status.stepping_seconds - last[1].stepping_seconds
        if steps <= 0 or seconds <= 0:
            self._last = last  # nothing finished yet: keep the older report as the start
            return
        ids = tuple(sorted(present))
        window = self._windows.get(ids, CoRun(partners=ids))
        self._windows[ids] = replace(
            window, steps=window.steps + steps, seconds=window.seconds + seconds
        )


def solo_step_seconds(co_runs: tuple[CoRun, ...]) -> tuple[float, int] | None:
    """Return (step time, steps) of the window alone, if it has enough steps."""
    for window in co_runs:
        if not window.partners and window.steps >= LEAST_STEPS and window.step_seconds:
            return window.step_seconds, window.steps
    return None


def measured_slowdown(window: CoRun, solo_seconds: float | None) -> float | None:
    """Return the slowdown measured in a window beside partners; None where unknown."""
    if not window.partners or window.steps < LEAST_STEPS or solo_seconds is None:
        return None
    together = window.step_seconds
    return None if together is None else together / solo_seconds
