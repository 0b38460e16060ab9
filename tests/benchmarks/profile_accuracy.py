"""How far measured active fractions are from the truth.

`python -m tests.benchmarks.profile_accuracy`

Every training runs on one processor core, and waits in every step for a known time. The true
fraction is computing / (computing + waiting), where computing is the kernel's account of the
processor time of its process over the same steps, and waiting the median of how long the waits
took: so it is known whoever else is on the core now and then, and however much slower that makes
the computing itself.

Distributed trainings wait for a time that nobody can set: see `profile_distributed`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.own_process import results_of
from tests.benchmarks.trainings import CHUNK_BYTES, TRAININGS, Pause, ThrottledRead, Wait, no_wait
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
from xonar_prefect.profiling.window import Window

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
WARM_UP, CALIBRATION = 10, 30
# The warm-up, a window that settles soon or is cut short, and what is traced afterwards.
STEPS = 45


def feed(requests: int, answers: int) -> None:
    """Answer every request with a chunk after the time it asks for, until there is none."""
    chunk = bytes(CHUNK_BYTES)
    with os.fdopen(requests) as lines:
        for line in lines:
            time.sleep(float(line))
            view = memoryview(chunk)
            while view:
                view = view[os.write(answers, view) :]


@contextmanager
def feeder() -> Iterator[tuple[int, int]]:
    """Start who answers throttled reads, on any core; yields the ends of its pipes."""
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--feed", str(request_read), str(answer_write)],
        pass_fds=(request_read, answer_write),
    )
    os.close(request_read)
    os.close(answer_write)
    try:
        yield request_write, answer_read
    finally:
        os.close(request_write)
        child.wait()
        os.close(answer_read)


@dataclass
class Noting:
    """Waits, and notes in every step what the processor has done by then and how long it waits."""

    wait: Wait
    notes: list[tuple[float, float, float]] = field(default_factory=list)

    def __call__(self) -> None:
        """Note it, and wait."""
        now, used, began = time.time(), time.process_time(), time.perf_counter()
        self.wait()
        self.notes.append((now, used, time.perf_counter() - began))

    def per_step(self, measurement: Measurement) -> tuple[float, float]:
        """Return the processor time and the wait of a step, over those that were measured."""
        began, ended = measurement.started_at_s or 0.0, measurement.ended_at_s or math.inf
        notes = [note for note in self.notes if began <= note[0] <= ended]
        _, used, waits = zip(*notes, strict=True)
        return (used[-1] - used[0]) / (len(used) - 1), median(waits)


def measure(name: str, fractions: Sequence[float], core: int) -> None:
    """Measure one training with all fractions and both ways to wait; prints lines of JSON."""
    with feeder() as (requests, answers):
        os.sched_setaffinity(0, {core})
        train = TRAININGS[name][1]()
        train(WARM_UP, no_wait)
        used = time.process_time()
        train(CALIBRATION, no_wait)
        compute_seconds = (time.process_time() - used) / CALIBRATION
        probe = ProcessProbe(None)
        for fraction in fractions:
            seconds = compute_seconds * (1 - fraction) / fraction
            waits: dict[str, Wait] = {
                "pause": Pause(seconds),
                "throttled read": ThrottledRead(seconds, requests, answers),
            }
            for kind, wait in waits.items():
                training = MeasuredTraining(probe, Window())
                found: list[Measurement] = []
                thread = threading.Thread(
                    target=lambda training=training, found=found: found.append(training.measure())
                )
                thread.start()
                noting = Noting(wait)
                with training.attempt():
                    train(STEPS, noting)
                training.close()
                thread.join()
                estimate = found[0].estimate
                used, waited = noting.per_step(found[0])
                print(  # noqa: T201
                    json.dumps(
                        {
                            "training": name,
                            "waits": kind,
                            "set": fraction,
                            "true": used / (used + waited),
                            "measured": found[0].active_fraction,
                            "uncorrected": estimate.active_fraction if estimate else None,
                            "displaced": found[0].displaced,
                            "steps": estimate.steps if estimate else 0,
                            "compute_ms": 1000 * used,
                        }
                    ),
                    flush=True,
                )


def run(name: str, fractions: Sequence[float], core: int) -> list[dict[str, Any]]:
    """Measure one training in a process of its own."""
    wanted = map(str, fractions)
    return results_of(__spec__.name, "--measure", name, "--core", str(core), "--fractions", *wanted)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return one row per training and way to wait, one column per fraction that was aimed at."""
    fractions = sorted({row["set"] for row in rows})
    shown = Table(title="Measured / true active fraction, by the one aimed at")
    for column in ("training", "waits for", *(f"{each:.1f}" for each in fractions), "worst error"):
        shown.add_column(column, justify="left" if column[0].isalpha() else "right")
    keys = dict.fromkeys((row["training"], row["waits"]) for row in rows)
    for key in keys:
        mine = {
            row["set"]: (row["measured"], row["true"])
            for row in rows
            if (row["training"], row["waits"]) == key and row["measured"] is not None
        }
        errors = [abs(value - true) for value, true in mine.values()]
        cells = [
            f"{mine[each][0]:.2f} / {mine[each][1]:.2f}" if each in mine else "-"
            for each in fractions
        ]
        shown.add_row(*key, *cells, f"{max(errors, default=float('nan')):.3f}")
    return shown


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fractions", type=float, nargs="+", default=FRACTIONS)
    parser.add_argument("--training", choices=sorted(TRAININGS), action="append")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--feed", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.feed:
        feed(*arguments.feed)
        return
    if arguments.measure:
        measure(arguments.measure, arguments.fractions, arguments.core)
        return
    console = Console()
    rows: list[dict[str, Any]] = []
    for name in arguments.training or TRAININGS:
        if importlib.util.find_spec(TRAININGS[name][0]) is None:
            console.print(f"{name}: not installed here, so not measured.")
            continue
        rows += run(name, arguments.fractions, arguments.core)
    console.print(table(rows))
    errors = [abs(row["measured"] - row["true"]) for row in rows if row["measured"] is not None]
    if errors:
        console.print(
            f"{len(errors)} profiles: median error {median(errors):.3f}, worst {max(errors):.3f}; "
            f"on average others had the core for "
            f"{sum(row['displaced'] or 0 for row in rows) / len(rows):.0%} of the time."
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
