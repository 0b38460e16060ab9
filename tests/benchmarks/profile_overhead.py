"""What being profiled costs a training: `python -m tests.benchmarks.profile_overhead`.

Blocks of steps of one process take turns: not watched, measured without end, traced, and only
counted, as after the window. The ratio of a block to the unwatched one before it is one pair; the
median of pairs is told. Start-up is the time of an interpreter that does nothing, watched or not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.trainings import TRAININGS, no_wait

BLOCK_STEPS, PAIRS = 30, 12
STARTS = 15


def modes() -> dict[str, Callable[[], Any]]:
    """Return the ways in which a block of steps may be watched."""
    from xonar_prefect.profiling import frameworks
    from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
    from xonar_prefect.profiling.window import Window

    endless = Window(minimum=10**9, maximum=10**9)
    probe = ProcessProbe(None)

    @contextmanager
    def measured() -> Iterator[None]:
        training = MeasuredTraining(probe, endless)
        thread = threading.Thread(target=training.measure)
        thread.start()
        with training.attempt():
            yield
        training.close()
        thread.join()

    @contextmanager
    def traced() -> Iterator[None]:
        training = MeasuredTraining(probe, endless, wanted=False)
        with training.attempt(), ExitStack() as stack:
            tracer = frameworks.tracer()
            if (annotate := tracer.start()) is not None and training._session is not None:
                training._session.trace(10**9, annotate)
                stack.callback(training._session.stop_tracing)
            yield
        tracer.stop()

    return {
        "measured": measured,
        "traced": traced,
        "after the window": lambda: MeasuredTraining(probe, endless, wanted=False).attempt(),
    }


def measure(name: str, core: int) -> None:
    """Measure one training; prints a line of JSON."""
    os.sched_setaffinity(0, {core})
    train = TRAININGS[name][1]()
    train(BLOCK_STEPS, no_wait)

    def block() -> tuple[float, float]:
        began, used = time.perf_counter(), time.process_time()
        train(BLOCK_STEPS, no_wait)
        return time.perf_counter() - began, time.process_time() - used

    result: dict[str, Any] = {"training": name}
    for mode, watching in modes().items():
        with watching():
            train(3, no_wait)
        pairs = []
        for _ in range(PAIRS):
            plain = block()
            with watching():
                watched = block()
            pairs.append((watched[0] / plain[0], watched[1] / plain[1]))
        result[mode] = [median(each) - 1 for each in zip(*pairs, strict=True)]
        result["step_ms"] = 1000 * plain[0] / BLOCK_STEPS
    print(json.dumps(result), flush=True)  # noqa: T201


def start_up(program: str = "pass") -> float:
    """Return the median of seconds that `xonar profile` adds to the start of an interpreter."""
    from xonar_prefect.profiling import injected

    plain = dict(os.environ)
    path = [str(Path(injected.__file__ or "").parent), plain.get("PYTHONPATH", "")]
    watched = {
        **plain,
        "PYTHONPATH": os.pathsep.join(path),
        "XONAR_PROFILE_REPORTS": "/nonexistent",
    }

    def seconds(environment: dict[str, str]) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        return time.perf_counter() - began

    return median(seconds(watched) - seconds(plain) for _ in range(STARTS))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--training", choices=sorted(TRAININGS), action="append")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.core)
        return
    shown = Table(title=f"Added to a step (wall / processor time), median of {PAIRS} pairs")
    for column in ("training", "step|", *(f"{mode}|" for mode in modes())):
        shown.add_column(column.rstrip("|"), justify="right" if column.endswith("|") else "left")
    console = Console()
    for name in arguments.training or TRAININGS:
        if importlib.util.find_spec(TRAININGS[name][0]) is None:
            console.print(f"{name}: not installed here, so not measured.")
            continue
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--measure", name, "--core", str(arguments.core)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
        )
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{result[mode][0]:+.1%} / {result[mode][1]:+.1%}" for mode in modes()]
        shown.add_row(name, f"{result['step_ms']:.1f} ms", *cells)
    console.print(shown)
    console.print(f"Added to the start of an interpreter: {start_up() * 1000:.0f} ms.")


if __name__ == "__main__":
    main()
