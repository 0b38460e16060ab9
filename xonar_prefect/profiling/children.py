"""Measures trainings whose steps are taken by processes that they start: `torchrun`, workers."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from xonar_prefect.profiling.counting import Progress
from xonar_prefect.profiling.estimate import Estimate
from xonar_prefect.profiling.injection import REPORTS_VARIABLE, Orders, reports_directory, watched
from xonar_prefect.profiling.marks import measure_forked
from xonar_prefect.profiling.measurement import Measurement, Split
from xonar_prefect.profiling.reports import Report, merge, progress_of, read_reports, read_statuses

_LOOK_SECONDS = 1.0


class Children:
    """The processes that a training starts; those that take steps report them."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._last: Sequence[Report] = ()
        self._last_progress: tuple[Progress, int | None] = Progress(), None

    @contextlib.contextmanager
    def watching(self, *, measure: bool, memory_limit_mib: int | None) -> Iterator[None]:
        """Have processes that are started or forked while the body runs watch themselves.

        They learn of it from the environment of this process; where one above does so already,
        they report to that.

        Args:
            measure: False to have them count their steps only.
            memory_limit_mib: Cap of each one's allocator on each GPU.
        """
        if REPORTS_VARIABLE in os.environ:
            yield
            return
        orders = Orders(starter=os.getppid(), measure=measure, memory_limit_mib=memory_limit_mib)
        with reports_directory(orders) as directory:
            if directory is None:
                yield
                return
            with _environment(watched(os.environ, directory)):
                self._directory = directory
                measure_forked(functools.partial(_watch_this_process, directory))
                try:
                    yield
                finally:
                    measure_forked(None)
                    self._last = read_reports(directory)
                    self._last_progress = progress_of(read_statuses(directory))
                    self._directory = None

    def measurement(self, over: threading.Event) -> Measurement:
        """Wait until all that take steps have measured enough, or until the training is over."""
        while not over.wait(_LOOK_SECONDS):
            reports = self._reports()
            if reports and all(each.settled for each in reports):
                return _measurement(reports)
        return _measurement(self._reports())

    def progress(self) -> tuple[Progress, int | None]:
        """Return the steps that they have taken, and how many it will be; None when unknown."""
        directory = self._directory
        if directory is None:
            return self._last_progress
        return progress_of(read_statuses(directory))

    def peak_gpu_memory_mib(self) -> int | None:
        """Return the highest peak that one of them had on a GPU; None when unknown."""
        peaks = [each.profile.peak_memory_mib for each in self._reports() if each.on_gpu]
        return max((peak for peak in peaks if peak is not None), default=None)

    def _reports(self) -> Sequence[Report]:
        directory = self._directory
        return self._last if directory is None else read_reports(directory)


def _watch_this_process(directory: Path) -> None:
    from xonar_prefect.profiling.watching import watch_this_process  # which knows children itself

    watch_this_process(str(directory))


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {
        name: os.environ.get(name)
        for name, value in variables.items()
        if os.environ.get(name) != value
    }
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _measurement(reports: Sequence[Report]) -> Measurement:
    profile = merge(reports)
    if profile is None or profile.step_seconds is None:
        return Measurement()
    shares = (profile.communication_fraction, profile.input_fraction, profile.other_fraction)
    split = None
    if profile.active_fraction is not None and None not in shares:
        communication, waiting, other = (share or 0.0 for share in shares)
        split = Split(
            active=profile.active_fraction, communication=communication, input=waiting, other=other
        )
    return Measurement(
        estimate=Estimate(
            steps=profile.steps,
            step_seconds=profile.step_seconds,
            step_seconds_interval=profile.step_seconds_interval,
            active_fraction=profile.active_fraction,
            active_fraction_interval=profile.active_fraction_interval,
        ),
        split=split,
        source=profile.source,
        framework=profile.framework,
        started_at_s=reports[0].started_at_s,
        ended_at_s=profile.measured_at_s,
    )
