"""Predicted against measured slowdowns of real pairs: `python -m tests.benchmarks.pairs_predicted`.

Queues of the demonstration's trainings run through a worker on processor cores (or GPUs); whoever
had a partner and a step time alone is one measurement. Takes minutes per queue.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

XONAR = "import sys; from xonar_prefect.cli import main; sys.exit(main())"
ENOUGH_PAIRS = 10


def queue(policy: str, size: int) -> Mapping[str, Any]:
    """Run one queue and return its result."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "result.json"
        subprocess.run(
            [
                sys.executable,
                "-c",
                XONAR,
                "demo",
                "--policy",
                policy,
                "--json",
                str(target),
                "--queue-size",
                str(size),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        result: Mapping[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


def measured(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the trainings of a queue whose slowdown was both predicted and measured."""
    for training in result["trainings"]:
        if training["partner"] and training["predicted_slowdown"] and training["measured_slowdown"]:
            yield training


def table(trainings: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per training that had a partner."""
    shown = Table(title="Slowdown beside a partner")
    for column in ("training", "active|", "partner", "predicted|", "measured|", "error|"):
        shown.add_column(column.rstrip("|"), justify="right" if column.endswith("|") else "left")
    for each in trainings:
        predicted, seen = each["predicted_slowdown"], each["measured_slowdown"]
        active = each["active_fraction"]
        shown.add_row(
            each["name"],
            "-" if active is None else f"{active:.0%}",
            each["partner"],
            f"{predicted:.2f}",
            f"{seen:.2f}",
            f"{predicted - seen:+.2f}",
        )
    return shown


def main() -> None:
    """Run queues until there are enough pairs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policy", default="parallel", help="who is paired with whom")
    parser.add_argument("--queue-size", type=int, default=16)
    parser.add_argument("--queues", type=int, default=2, help="at most so many")
    arguments = parser.parse_args()
    console = Console()
    found: list[Mapping[str, Any]] = []
    for _ in range(arguments.queues):
        found += measured(queue(arguments.policy, arguments.queue_size))
        if len(found) >= 2 * ENOUGH_PAIRS:
            break
    console.print(table(found))
    errors = [abs(each["predicted_slowdown"] - each["measured_slowdown"]) for each in found]
    if errors:
        console.print(f"{len(errors)} trainings with a partner: median error {median(errors):.2f}.")


if __name__ == "__main__":
    main()
