"""Predicted against measured slowdowns of real pairs: `python -m tests.benchmarks.pairs_predicted`.

Queues of the demonstration's trainings run through a worker on processor cores (or GPUs), one
after the other as a pool sees them night after night: what the first has taught is known to the
next. Whoever had a partner and a step time alone is one measurement. Takes minutes per queue.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

XONAR = "import sys; from xonar_prefect.cli import main; sys.exit(main())"


def queue(policy: str, size: int, directory: Path) -> Mapping[str, Any]:
    """Run one queue in a directory, where what it teaches stays, and return its result."""
    target = directory / "result.json"
    words = ["--policy", policy, "--queue-size", str(size), "--home", str(directory / "home")]
    subprocess.run(
        [sys.executable, "-c", XONAR, "demo", *words, "--json", str(target)],
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


def errors(trainings: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return by how much each prediction was wrong."""
    return [abs(each["predicted_slowdown"] - each["measured_slowdown"]) for each in trainings]


def table(number: int, trainings: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per training of a queue that had a partner."""
    shown = Table(title=f"Slowdown beside a partner, queue {number}")
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
    """Run the queues, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policy", default="parallel", help="who is paired with whom")
    parser.add_argument("--queue-size", type=int, default=16)
    parser.add_argument("--queues", type=int, default=3)
    arguments = parser.parse_args()
    console = Console()
    found: list[list[Mapping[str, Any]]] = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(1, arguments.queues + 1):
            result = queue(arguments.policy, arguments.queue_size, Path(directory))
            found.append(list(measured(result)))
            console.print(table(number, found[-1]))
    numbered = [(f"Queue {number}", trainings) for number, trainings in enumerate(found, 1)]
    for name, trainings in (*numbered, ("All", [each for queue in found for each in queue])):
        if trainings:
            console.print(
                f"{name}: {len(trainings)} trainings with a partner, "
                f"median error {median(errors(trainings)):.3f}."
            )


if __name__ == "__main__":
    main()
