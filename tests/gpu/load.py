"""A training-like load that a check drives: steps of computing and of waiting, in a known ratio.

It obeys lines of JSON on standard input and answers each with one on standard output:

    {"do": "steps", "active_fraction": 0.5, "seconds": 5}
        -> {"steps": ..., "seconds": ..., "active_seconds": ...}
    {"do": "profile", "active_fraction": 0.5, "seconds": 20}
        -> {"active_fraction": ..., "step_seconds": ..., "steps": ..., "source": ...}

The first line it writes says what it runs on and what a step's computing takes alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

COMPUTE_SECONDS = 0.02
JITTER = 0.5  # of the waiting: equal, constant periods would lock in phase


class Processor:
    """Computes on the processor core, with nothing but the standard library."""

    on_gpu = False
    gpus_visible = None

    def __init__(self) -> None:
        self.description = "processor"
        self._block = bytes(1 << 16)

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        started = time.process_time()
        for _ in range(amount):
            hashlib.sha256(self._block).digest()
        return time.process_time() - started


class Torch:
    """Computes with PyTorch; the GPU's own clock tells how long it was active."""

    def __init__(self) -> None:
        import torch

        self.gpus_visible = torch.cuda.device_count()
        self.on_gpu = self.gpus_visible > 0
        self.description = f"torch {torch.__version__}"
        self._torch = torch
        device = "cuda" if self.on_gpu else "cpu"
        size = 2048 if self.on_gpu else 256
        self._matrix = torch.rand((size, size), device=device)

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        cuda = self._torch.cuda
        started_at_s = time.perf_counter()
        if self.on_gpu:
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        for _ in range(amount):
            self._torch.mm(self._matrix, self._matrix)
        if not self.on_gpu:
            return time.perf_counter() - started_at_s
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


class TensorFlow:
    """Computes with TensorFlow; active is the time until the result is there."""

    def __init__(self) -> None:
        import tensorflow

        self.gpus_visible = len(tensorflow.config.list_physical_devices("GPU"))
        self.on_gpu = self.gpus_visible > 0
        self.description = f"tensorflow {tensorflow.__version__}"
        size = 2048 if self.on_gpu else 256
        matrix = tensorflow.random.uniform((size, size))

        @tensorflow.function  # type: ignore[untyped-decorator]
        def multiply(amount: Any) -> Any:
            result = matrix
            for _ in tensorflow.range(amount):
                result = tensorflow.nn.relu(tensorflow.matmul(matrix, result) / size)
            return tensorflow.reduce_sum(result)

        self._multiply = multiply
        self._amount = tensorflow.constant

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        started_at_s = time.perf_counter()
        self._multiply(self._amount(amount)).numpy()
        return time.perf_counter() - started_at_s


FRAMEWORKS: dict[str, Callable[[], Any]] = {
    "torch": Torch,
    "tensorflow": TensorFlow,
    "processor": Processor,
}


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
            "active_fraction": estimate.active_fraction,
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
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load = Load(FRAMEWORKS[arguments.framework](), arguments.seed)

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
        do = {"steps": load.steps, "profile": load.profile}[order["do"]]
        answer(do(order["active_fraction"], order["seconds"]))


if __name__ == "__main__":
    main()
