"""A training-like load that a check drives: steps of computing and of waiting, in a known ratio.

It obeys lines of JSON on standard input and answers each with one on standard output:

    {"do": "steps", "active_fraction": 0.5, "seconds": 5}
        -> {"steps": ..., "seconds": ..., "active_seconds": ...}
    {"do": "profile", "active_fraction": 0.5, "seconds": 20}
        -> {"active_fraction": ..., "step_seconds": ..., "steps": ..., "source": ...}
    {"do": "hold", "mib": 512}
        -> {"account_mib": ..., "peak_mib": ..., "source": ...}
    {"do": "exceed", "mib": 4096}
        -> {"held_mib": ..., "out_of_memory": ..., "error": ...}

The first line it writes says what it runs on and what a step's computing takes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

from tests.gpu.frameworks import FRAMEWORKS, Processor
from xonar_prefect.profiling.frameworks import limited_memory

COMPUTE_SECONDS = 0.02
CHUNK_MIB = 64
JITTER = 0.5  # of the waiting: equal, constant periods would lock in phase


class Load:
    """Steps on a framework: a fixed amount of computing, then waiting."""

    def __init__(self, framework: Any, seed: int) -> None:
        self.framework = framework
        self._random = random.Random(seed)
        self._amount, self.compute_seconds = self._calibrate()

    def _calibrate(self) -> tuple[int, float]:
        """Find how much computing takes about `COMPUTE_SECONDS` alone."""
        self.framework.compute(4)  # compiles, loads libraries
        amount = 1
        while (seconds := self._fastest(amount)) < COMPUTE_SECONDS / 2:
            amount *= 2
        amount = max(1, round(amount * COMPUTE_SECONDS / seconds))
        return amount, self._fastest(amount)

    def _fastest(self, amount: int) -> float:
        def timed() -> float:
            started_at_s = time.perf_counter()
            self.framework.compute(amount)
            return time.perf_counter() - started_at_s

        return min(timed() for _ in range(5))

    def step(self, active_fraction: float) -> float:
        """Take one step and return how many seconds of it were active."""
        active_seconds = float(self.framework.compute(self._amount))
        wait_seconds = self.compute_seconds * (1 - active_fraction) / active_fraction
        time.sleep(wait_seconds * self._random.uniform(1 - JITTER, 1 + JITTER))
        return active_seconds

    def hold(self, mib: int) -> dict[str, object]:
        """Take memory, keep it, and say what the framework and this package make of it."""
        from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
        from xonar_prefect.profiling.window import Window

        self.framework.hold(mib)
        training = MeasuredTraining(ProcessProbe(None), Window(), on_gpu=self.framework.on_gpu)
        peak_mib, source = training.peak_memory()
        account_mib = self.framework.account_mib()
        return {"account_mib": account_mib, "peak_mib": peak_mib, "source": source}

    def exceed(self, mib: int) -> dict[str, object]:
        """Take memory until there is an error, or so much was taken."""
        held = 0
        while held < mib:
            try:
                self.framework.hold(CHUNK_MIB)
            except (MemoryError, RuntimeError) as error:
                return {"held_mib": held, "out_of_memory": True, "error": type(error).__name__}
            except Exception as error:
                if "ResourceExhausted" not in type(error).__name__:
                    raise
                return {"held_mib": held, "out_of_memory": True, "error": type(error).__name__}
            held += CHUNK_MIB
        return {"held_mib": held, "out_of_memory": False, "error": None}

    def steps(self, active_fraction: float, seconds: float) -> dict[str, object]:
        """Take steps for so long and say how many there were."""
        started_at_s = now_s = time.perf_counter()
        count, active_seconds = 0, 0.0
        while now_s - started_at_s < seconds:
            active_seconds += self.step(active_fraction)
            count += 1
            now_s = time.perf_counter()
        return {
            "steps": count,
            "seconds": now_s - started_at_s,
            "active_seconds": active_seconds,
        }

    def profile(self, active_fraction: float, seconds: float) -> dict[str, object]:
        """Take steps under this package's own profiler until it has settled, or for so long."""
        from xonar_prefect.profiling import Window, step
        from xonar_prefect.profiling.measurement import Measurement
        from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe

        on_gpu = bool(self.framework.on_gpu)
        training = MeasuredTraining(ProcessProbe(None), Window(), on_gpu=on_gpu)
        measured: list[Measurement] = []
        measuring = threading.Thread(target=lambda: measured.append(training.measure()))
        measuring.start()
        until_s = time.perf_counter() + seconds
        with training.attempt():
            while measuring.is_alive() and time.perf_counter() < until_s:
                with step():
                    self.step(active_fraction)
        training.close()
        measuring.join()
        estimate = measured[0].estimate if measured else None
        if estimate is None:
            return {"problem": "no step was measured"}
        return {
            "active_fraction": measured[0].active_fraction,
            "step_seconds": estimate.step_seconds,
            "steps": estimate.steps,
            "source": measured[0].source,
        }


def main() -> None:
    """Obey until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", help="processor cores to stay on, comma-separated")
    parser.add_argument("--limit-mib", type=int, help="cap of its allocator")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with ExitStack() as stack:
        if arguments.limit_mib is not None:
            stack.enter_context(limited_memory(arguments.limit_mib))
        load = Load(FRAMEWORKS[arguments.framework](), arguments.seed)
    if arguments.limit_mib is not None and isinstance(load.framework, Processor):
        load.framework.limit(arguments.limit_mib)
    obey(load, answers)


def obey(load: Load, answers: TextIO) -> None:
    """Do as the lines of standard input say, until there are none."""
    orders: dict[str, Callable[..., dict[str, object]]] = {
        "steps": load.steps,
        "profile": load.profile,
        "hold": load.hold,
        "exceed": load.exceed,
    }

    def answer(value: dict[str, object]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer(
        {
            "description": load.framework.description,
            "gpus_visible": load.framework.gpus_visible,
            "compute_seconds": load.compute_seconds,
        }
    )
    for line in sys.stdin:
        order = json.loads(line)
        answer(orders[order.pop("do")](**order))


if __name__ == "__main__":
    main()
