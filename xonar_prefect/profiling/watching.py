"""Watches the interpreter it runs in, for whoever started it: `xonar profile`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from contextlib import ExitStack
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path

from xonar_prefect.profiling import frameworks
from xonar_prefect.profiling.injection import Orders
from xonar_prefect.profiling.marks import measure_forked
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.processes import NO_GPU, command_below, describe_cores
from xonar_prefect.profiling.reports import Report, own_rank, progress_directory
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe, profile_of
from xonar_prefect.profiling.window import Window

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_MEASURED_REPORT_SECONDS = 10.0  # then only the memory may still grow
# How long the end of the program waits for a measurement that is being read.
_LAST_WORD_SECONDS = 5.0


def watch_this_process(directory: str) -> None:
    """Measure whatever trains in this process and report it into a directory."""
    # What is logged from here would come between the lines of somebody else's program.
    logging.getLogger("xonar_prefect").addHandler(logging.NullHandler())
    logging.getLogger("xonar_prefect").propagate = False
    reports = Path(directory)
    orders = Orders.read(reports)

    def watch() -> None:
        Watcher(reports, Window(), orders).start()

    watch()
    measure_forked(watch)


class Watcher:
    """Measures one process from its start to its end.

    Args:
        directory: Where it reports.
        window: When to measure.
        orders: What it was told.
    """

    def __init__(self, directory: Path, window: Window, orders: Orders) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._probe = ProcessProbe(progress_directory(directory), command_below(orders.starter))
        self._training = MeasuredTraining(
            self._probe,
            window,
            on_gpu=None,
            wanted=orders.measure,
            memory_limit_mib=orders.memory_limit_mib,
        )
        self._attempt = ExitStack()
        self._measurement: Measurement | None = None
        self._over = threading.Event()
        self._measuring = threading.Thread(target=self._measure, name="xonar-profile", daemon=True)

    def start(self) -> None:
        """Begin; the end of the interpreter is the end of the training."""
        self._attempt.enter_context(self._training.attempt())
        self._measuring.start()
        threading.Thread(target=self._report_so_far, name="xonar-report", daemon=True).start()
        atexit.register(self.finish)
        self._finish_with_multiprocessing()
        # A child of a fork server may be watched before it forgets all finalizers, and calls this.
        register_after_fork(self, Watcher._finish_with_multiprocessing)

    def _finish_with_multiprocessing(self) -> None:
        # Children of `multiprocessing` that were forked end without calling what is registered.
        Finalize(None, self.finish, exitpriority=0)

    def finish(self) -> None:
        """The training is over: write the last word on it."""
        if os.getpid() != self._pid or self._over.is_set():
            return
        self._over.set()
        # Who interrupts once more wants it to end, not to read where it was.
        with contextlib.suppress(KeyboardInterrupt):
            self._attempt.close()
            self._training.close()
            self._measuring.join(_LAST_WORD_SECONDS)
            self._write()

    def _measure(self) -> None:
        measurement = self._training.measure()
        if measurement.estimate is None:
            return
        self._measurement = measurement
        self._write()
        for changed in self._training.changes():
            self._measurement = changed
            self._write()

    def _report_so_far(self) -> None:
        """Write what is known now and then: a training may be killed at any moment."""
        seconds = _REPORT_SECONDS
        while not self._over.wait(seconds):
            self._write()
            seconds = _REPORT_SECONDS if self._measurement is None else _MEASURED_REPORT_SECONDS

    def _write(self) -> None:
        measurement = self._measurement or self._training.so_far()
        if measurement is None or measurement.estimate is None:
            return
        with contextlib.suppress(Exception):  # a full disk is no reason to disturb a training
            gpu_model = frameworks.gpu_model()
            profile = profile_of(
                measurement,
                key="command",
                device_model=gpu_model or NO_GPU,
                device=gpu_model or describe_cores(),
                joint=False,
                code_version=None,
                peak_memory=self._training.peak_memory(),
            )
            if profile is not None:
                Report(
                    pid=self._pid,
                    rank=own_rank(),
                    on_gpu=gpu_model is not None,
                    profile=profile,
                    descendants=self._probe.tree.pids[1:],
                    settled=self._measurement is not None,
                    started_at_s=measurement.started_at_s,
                ).write(self._directory)
