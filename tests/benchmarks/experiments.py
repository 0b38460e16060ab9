"""What the benchmarks of policies share: options, data, paired runs and their tables.

Data is read from a directory that the user names with `--data`; nothing of it is kept here.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rich import box
from rich.console import Console
from rich.table import Table

from xonar_prefect.core.policies import POLICIES, policy_named
from xonar_prefect.core.simulation import Learnt, Submission, World, simulate
from xonar_prefect.core.simulation.comparison import (
    Difference,
    QueueFigures,
    difference,
    figures_of,
    summary,
)

SEEDS = (1, 2, 3)
BASELINE = "parallel"
MEDIAN_SECONDS = 600.0

Figures = Mapping[str, Sequence[QueueFigures]]


def arguments(description: str, *files: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have; `files` must be in `--data`."""
    parser = argparse.ArgumentParser(description=description)
    if files:
        parser.add_argument(
            "--data", type=Path, required=True, help=f"directory with {', '.join(files)}"
        )
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--queues", type=int, default=200, help="queues for each seed")
    parser.add_argument("--policies", nargs="+", default=sorted(POLICIES), choices=sorted(POLICIES))
    return parser


def data(directory: Path, name: str) -> Path:
    """Return a data file, or leave with a sentence where it is absent."""
    path = directory / name
    if not path.exists():
        sys.exit(f"{path} is absent; name the directory that has it with --data.")
    return path


def queues_of_ten(kinds: Sequence[str], seed: int, count: int) -> dict[str, list[Submission]]:
    """Draw queues of ten, all submitted at once, with log-normal durations (sigma 1)."""
    dice = Random(seed)
    return {
        f"q{number:04}": [
            Submission(
                name=f"{position}",
                kind=dice.choice(kinds),
                submitted_at_s=0.0,
                solo_seconds=dice.lognormvariate(math.log(MEDIAN_SECONDS), 1.0),
            )
            for position in range(10)
        ]
        for number in range(count)
    }


def compare(
    world: World,
    queues: Mapping[str, Sequence[Submission]],
    policies: Iterable[str],
    *,
    remember: bool = False,
) -> dict[str, list[QueueFigures]]:
    """Simulate every queue under every policy."""
    found: dict[str, list[QueueFigures]] = {}
    for name in dict.fromkeys([BASELINE, *policies]):
        policy = policy_named(name)
        learnt = Learnt()
        found[name] = []
        for queue, submissions in queues.items():
            run = simulate(
                world,
                submissions,
                policy,
                learnt=learnt if remember else None,
                clock=time.perf_counter,
            )
            learnt = run.learnt
            found[name].append(figures_of(queue, run, len(world.devices)))
    return found


def ratio(share: Difference | None) -> str:
    """Write a paired difference as a ratio with its 95 % interval."""
    if share is None:
        return "-"
    text = f"{1 + share.mean:.3f}"
    if share.low is None or share.high is None:
        return text
    return f"{text} ({1 + share.low:.3f}-{1 + share.high:.3f})"


def new_table(title: str, *headings: str) -> Table:
    """Return a table whose first column is words and whose others are figures."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def ratios(title: str, by_seed: Mapping[int, Figures], base: str = BASELINE) -> Table:
    """Return how policies compare with a baseline, for each seed and over all of them."""
    table = new_table(
        f"{title}: ratio to {base} (95 % interval over paired queues)",
        "policy",
        "seed",
        "average JCT",
        "p95 JCT",
        "makespan",
        "p95 of all",
        "lost",
        "ms/decision",
    )
    policies = next(iter(by_seed.values()))
    for name in policies:
        for seed, figures in by_seed.items():
            _row(table, name, str(seed), figures[name], figures[base])
        if len(by_seed) > 1:
            ours = _distinct(by_seed, name)
            _row(table, name, "all", ours, _distinct(by_seed, base))
    return table


def _distinct(by_seed: Mapping[int, Figures], name: str) -> list[QueueFigures]:
    return [
        replace(each, queue=f"{seed}/{each.queue}")
        for seed, figures in by_seed.items()
        for each in figures[name]
    ]


def _row(
    table: Table,
    name: str,
    seed: str,
    ours: Sequence[QueueFigures],
    base: Sequence[QueueFigures],
) -> None:
    total = summary(ours)
    shares = [
        ratio(difference(ours, base, figure))
        for figure in ("average_jct_s", "p95_jct_s", "makespan_s")
    ]
    per_decision = total["seconds_per_decision"] or 0.0
    tail = total["p95_jct_over_all_s"] / summary(base)["p95_jct_over_all_s"]
    lost = f"{total['out_of_memory']}"
    table.add_row(name, seed, *shares, f"{tail:.3f}", lost, f"{per_decision * 1000:.2f}")


def show(*tables: Table) -> None:
    """Print tables."""
    console = Console(width=max(110, Console().width))
    for table in tables:
        console.print(table)
