"""Has a training measured as a profile step does: by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
from xonar_prefect.profiling.window import Window


def measure(train: Callable[[], object], window: Window) -> Measurement:
    """Run a training to its end, and return what was measured of it."""
    training = MeasuredTraining(ProcessProbe(None), window)
    found: list[Measurement] = []
    thread = threading.Thread(target=lambda: found.append(training.measure()))
    thread.start()
    try:
        with training.attempt():
            train()
    finally:
        training.close()
        thread.join(120)
    return found[0]
