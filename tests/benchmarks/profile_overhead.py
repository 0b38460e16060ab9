"""What being profiled costs a training: `python -m tests.benchmarks.profile_overhead`.

Short blocks of steps of one process are compared in pairs, in an order that dice choose: one is
watched - measured without end, traced, or only counted, as after the window - and one is not any
more. Both follow the same set-up and a few steps more, so what is told is what each step costs.
What a profile costs beside its steps - to start, stop and read a trace - is told apart: the
processor time of the thread that measures, for the first profile of its process.
The median of pairs is told, with its 95 % interval. Where a machine's own speed wanders by more
than what is looked for, the steps of an empty loop tell more: all that they take is ours. Start-up
is the time of an interpreter that does nothing, or imports what makes it be watched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.own_process import results_of
from tests.benchmarks.trainings import TRAININGS, no_wait
from xonar_prefect.profiling.injection import Orders, reports_directory, watched
from xonar_prefect.run_directory import RunDirectory

UNTIMED_STEPS, PAIRS = 3, 300
# Each block of Keras is a call of `fit`, which takes longer to begin than a step takes.
BLOCK_STEPS = {"Keras fit": 15, "TensorFlow loop": 3, "PyTorch loop": 3, "JAX loop": 3}
PROFILED_STEPS = 100
EMPTY_STEPS = 50_000
IDLE_SECONDS = 10.0
STARTS = 15


def modes(directory: RunDirectory | None = None) -> dict[str, Callable[[], Any]]:
    """Return the ways in which a block of steps may be watched, progress told to a directory."""
    from xonar_prefect.profiling import frameworks
    from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
    from xonar_prefect.profiling.window import Window

    endless = Window(minimum=10**9, maximum=10**9)
    probe = ProcessProbe(directory)

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


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return a median with its 95 % interval, from the ranks between which it lies.

    >>> median_with_interval(range(101))
    (50, 40, 60)
    """
    ordered, count = sorted(values), len(values)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return median(ordered), ordered[low], ordered[high]


def measure(name: str, core: int, pairs_of_each: int, wanted: Container[str]) -> None:
    """Measure one training; prints a line of JSON."""
    from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
    from xonar_prefect.profiling.window import Window

    os.sched_setaffinity(0, {core})
    train = TRAININGS[name][1]()
    steps = BLOCK_STEPS[name]
    train(10 * steps, no_wait)

    def block(watching: Callable[[], Any], *, watched: bool) -> tuple[float, float]:
        with ExitStack() as stack:
            stack.enter_context(watching())
            if not watched:
                stack.close()
            train(UNTIMED_STEPS, no_wait)
            began, used = time.perf_counter(), time.process_time()
            train(steps, no_wait)
            return time.perf_counter() - began, time.process_time() - used

    def whole_profile() -> float:
        training = MeasuredTraining(ProcessProbe(None), Window())
        used: list[float] = []

        def profile() -> None:
            began = time.thread_time()
            training.measure()
            used.append(time.thread_time() - began)

        thread = threading.Thread(target=profile)
        thread.start()
        with training.attempt():
            train(PROFILED_STEPS, no_wait)
        training.close()
        thread.join()
        return used[0]

    dice = Random(name)
    result: dict[str, Any] = {"training": name, "whole_profile": whole_profile()}
    for mode, watching in modes().items():
        if mode not in wanted:
            continue
        added: tuple[list[float], list[float]] = ([], [])
        for _ in range(pairs_of_each):
            order = dice.sample([True, False], 2)
            of = {watched: block(watching, watched=watched) for watched in order}
            for each, kind in enumerate(added):
                kind.append(of[True][each] / of[False][each] - 1)
            result["step_ms"] = 1000 * of[False][0] / steps
        result[mode] = [median_with_interval(each) for each in added]
    print(json.dumps(result), flush=True)  # noqa: T201


def measure_our_own(core: int) -> None:
    """Measure steps in which nothing is done, and a training that takes none; prints JSON."""
    os.sched_setaffinity(0, {core})
    import xonar_prefect

    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        watchings = modes(RunDirectory(Path(directory)))
        for mode in ("measured", "after the window"):
            with watchings[mode]():
                used = time.thread_time()
                for _ in xonar_prefect.steps(range(EMPTY_STEPS)):
                    pass
                result[mode] = (time.thread_time() - used) / EMPTY_STEPS
        with watchings["after the window"]():
            used = time.process_time()
            time.sleep(IDLE_SECONDS)
            result["reports"] = (time.process_time() - used) / IDLE_SECONDS
    print(json.dumps(result), flush=True)  # noqa: T201


def start_up(program: str) -> float:
    """Return the median of seconds that `xonar profile` adds to the start of an interpreter."""

    def seconds(environment: Mapping[str, str]) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        return time.perf_counter() - began

    with reports_directory(Orders(starter=os.getpid())) as directory:
        assert directory is not None, "there is no room for reports"
        environment = watched(os.environ, directory)
        return median(seconds(environment) - seconds(os.environ) for _ in range(STARTS))


def percents(figure: Sequence[float]) -> str:
    """Write a median with its interval.

    >>> percents([0.004, -0.001, 0.011])
    '+0.4 % (-0.1 to +1.1)'
    """
    middle, low, high = [100 * each for each in figure]
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--training", choices=sorted(TRAININGS), action="append")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of blocks, for each figure")
    parser.add_argument("--modes", nargs="+", choices=list(modes()), default=list(modes()))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--measure-our-own", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_our_own:
        measure_our_own(arguments.core)
        return
    if arguments.measure:
        measure(arguments.measure, arguments.core, arguments.pairs, arguments.modes)
        return
    core = str(arguments.core)
    shown = Table(
        title=f"Added to a step (wall / processor time), median of {arguments.pairs} pairs"
    )
    for column in (
        "training",
        "step|",
        *(f"{mode}|" for mode in arguments.modes),
        "beside the steps, once|",
    ):
        shown.add_column(column.rstrip("|"), justify="right" if column.endswith("|") else "left")
    console = Console()
    for name in arguments.training or TRAININGS:
        if importlib.util.find_spec(TRAININGS[name][0]) is None:
            console.print(f"{name}: not installed here, so not measured.")
            continue
        console.print(f"{name} is measured.")
        asked = ["--measure", name, "--core", core, "--pairs", str(arguments.pairs)]
        for result in results_of(__spec__.name, *asked, "--modes", *arguments.modes):
            cells = [" / ".join(map(percents, result[mode])) for mode in arguments.modes]
            once = f"{1000 * result['whole_profile']:.0f} ms"
            shown.add_row(name, f"{result['step_ms']:.1f} ms", *cells, once)
    console.print(shown)
    for ours in results_of(__spec__.name, "--measure-our-own", "--core", core):
        console.print(
            f"An empty step takes {ours['measured'] * 1e6:.1f} microseconds while measured and "
            f"{ours['after the window'] * 1e6:.1f} after the window; reports of progress take "
            f"{ours['reports']:.2%} of a core."
        )
    idle, trains = start_up("pass") * 1000, start_up("import xonar_prefect") * 1000
    console.print(
        f"Added to the start of an interpreter: {idle:.0f} ms, or {trains:.0f} ms where it trains."
    )


if __name__ == "__main__":
    main()
