"""The first night of a pool: nothing is profiled, no duration known, all is submitted at once.

Every queue has a world of its own kinds (that of `other_law`), of which a device must first be
given to one alone. Run with `python -m tests.benchmarks.fresh_pool`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from tests.benchmarks.experiments import Figures, arguments, compare, ratios, show
from tests.benchmarks.other_law import MODEL, generated
from xonar_prefect.core.simulation import Submission, World
from xonar_prefect.core.simulation.assembly import gpus
from xonar_prefect.core.simulation.comparison import QueueFigures

SIZES = ((4, 2, 10, 60), (4, 2, 10, 600), (8, 4, 40, 60), (8, 4, 40, 600), (20, 8, 60, 300))
"""Kinds, devices, trainings, and the median of seconds that they take alone."""
STARTUP_SECONDS = 15.0


def fresh(seed: int, kinds: int, devices: int) -> World:
    """Return a world of which nothing is known beforehand."""
    return replace(
        generated(seed, kinds),
        devices=gpus(devices, MODEL, 24000),
        profiled=False,
        durations_known=False,
        startup_seconds=STARTUP_SECONDS,
    )


def queue(world: World, dice: Random, count: int, median_s: float) -> list[Submission]:
    """Draw trainings, all submitted at once, with log-normal durations (sigma .6)."""
    kinds = sorted(world.profiles)
    return [
        Submission(
            name=f"{position}",
            kind=dice.choice(kinds),
            submitted_at_s=0.0,
            solo_seconds=dice.lognormvariate(math.log(median_s), 0.6),
        )
        for position in range(count)
    ]


def main() -> None:
    """Print a table for every size."""
    options = arguments("The first night of a pool").parse_args()
    for kinds, devices, count, median_s in SIZES:
        by_seed: dict[int, Figures] = {}
        for seed in options.seeds:
            dice = Random(seed)
            found: dict[str, list[QueueFigures]] = {}
            for number in range(options.queues):
                world = fresh(dice.randrange(2**31), kinds, devices)
                queues = {f"q{number:04}": queue(world, dice, count, median_s)}
                for name, figures in compare(world, queues, options.policies).items():
                    found.setdefault(name, []).extend(figures)
            by_seed[seed] = found
        title = f"{count} trainings of {kinds} kinds on {devices} devices, median {median_s} s"
        show(ratios(title, by_seed))


if __name__ == "__main__":
    main()
