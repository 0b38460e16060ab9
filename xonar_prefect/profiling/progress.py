"""Reports the progress of the training in this process to its run directory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from xonar_prefect.profiling.counting import Progress
from xonar_prefect.profiling.processes import ProcessTree, own_peak_resident_mib
from xonar_prefect.profiling.session import Session
from xonar_prefect.run_directory import RunDirectory, Status

ProgressOfChildren = Callable[[], "tuple[Progress, int | None]"]

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
# Looking for children takes the longer the more processes the host has: it is done less often
# where it takes more than this share of the time.
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 2.0, 20.0
_LOOKING_SHARE = 0.002


class Reporter:
    """Samples memory and writes `Status`, from a thread of its own, all through the process.

    Trainings of one process come one after the other into one report: their steps add up.

    Args:
        directory: Where to report; None only samples memory.
        tree: The processes whose memory counts.
    """

    def __init__(self, directory: RunDirectory | None, tree: ProcessTree) -> None:
        self._directory = directory
        self._tree = tree
        self._lock = threading.Lock()
        self._before = Progress()
        self._session: Session | None = None
        self._of_children: ProgressOfChildren = _no_children
        self._phase = "starting"
        self._published = 0
        self._peak_mib = 0
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def peak_resident_mib(self) -> int | None:
        """Peak of the process tree's resident memory so far; None when unknown."""
        self._sample()
        return self._peak_mib or None

    def begin(
        self, session: Session, of_children: ProgressOfChildren | None = None, *, profiling: bool
    ) -> None:
        """A training begins.

        Args:
            session: Its steps.
            of_children: Those of processes that it started, with their total; they count where it
                takes none itself.
            profiling: It is measured, until `profiled` or `end`.
        """
        with self._lock:
            self._session = session
            self._of_children = of_children or _no_children
            self._phase = "profiling" if profiling else "training"
            self._stopped = False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._report_for_ever, name="xonar-progress", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def profiled(self, *, published: bool) -> None:
        """Measuring is over; the worker is told at once when there is a profile to read."""
        with self._lock:
            if self._phase == "profiling":
                self._phase = "training"
            self._published += published
        self._write()

    def end(self, session: Session) -> None:
        """The training is over: write the last word on it."""
        self._sample()
        with self._lock:
            if self._session is not session:
                return
            self._before, _ = self._sum()
            self._session = None
            self._phase = "done"
            self._stopped = True
        self._wake.set()
        self._write()

    def _report_for_ever(self) -> None:
        look_again_at = 0.0
        while True:
            with self._lock:
                if self._stopped:
                    self._thread = None
                    return
            try:
                if (now := time.monotonic()) >= look_again_at:
                    look_again_at = now + self._look_for_children()
                self._sample()
                self._write()
            except Exception:  # reporting is not worth a training
                logger.warning("Progress cannot be reported.", exc_info=True)
            self._wake.wait(_REPORT_SECONDS)
            self._wake.clear()

    def _look_for_children(self) -> float:
        """Look for them, and return after how many seconds to look again."""
        began_s = time.thread_time()
        self._tree.refresh()
        pause_s = (time.thread_time() - began_s) / _LOOKING_SHARE
        return min(max(_LOOK_SECONDS, pause_s), _LONGEST_LOOK_SECONDS)

    def _sample(self) -> None:
        self._peak_mib = max(
            self._peak_mib, self._tree.resident_mib(), own_peak_resident_mib() or 0
        )

    def _sum(self) -> tuple[Progress, int | None]:
        """Return the steps of all trainings here, and how many it will be; None when unknown."""
        session, before = self._session, self._before
        if session is None:
            return before, None
        now, total = session.progress, session.steps_total
        if not now.steps_done:
            of_children, total_of_children = self._of_children()
            if of_children.steps_done:
                now, total = of_children, total_of_children
        progress = Progress(
            steps_done=before.steps_done + now.steps_done,
            stepping_seconds=before.stepping_seconds + now.stepping_seconds,
            last_step_at_s=now.last_step_at_s or before.last_step_at_s,
        )
        return progress, None if total is None else before.steps_done + total

    def _write(self) -> None:
        if self._directory is None:
            return
        with self._lock:
            done, total = self._sum()
            if self._phase == "done":
                total = done.steps_done or None
            status = Status(
                phase="starting" if self._phase != "done" and not done.steps_done else self._phase,
                steps_done=done.steps_done,
                steps_total=total,
                stepping_seconds=done.stepping_seconds,
                last_step_at_s=done.last_step_at_s,
                peak_memory_mib=self._peak_mib or None,
                profiles_published=self._published,
                updated_at_s=time.time(),
            )
            try:
                self._directory.write(status)
            except OSError as error:
                logger.warning("Progress cannot be written to %s: %s", self._directory.path, error)


def _no_children() -> tuple[Progress, int | None]:
    return Progress(), None
