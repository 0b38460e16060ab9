"""How much of the gain over `parallel` that perfect knowledge allows each policy reaches.

Queues of ten from the one-GPU rows of profiles with stages, all profiled, under processor sharing,
and from a generated world that follows another law (`other_law`).
Run with `python -m tests.benchmarks.against_perfect_knowledge --data DIRECTORY`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean, stdev

from tests.benchmarks.experiments import (
    BASELINE,
    arguments,
    compare,
    data,
    new_table,
    queues_of_ten,
    ratios,
    show,
)
from tests.benchmarks.search import best_average
from xonar_prefect.core.metrics import student_t_quantile
from xonar_prefect.core.simulation import Submission, World
from xonar_prefect.core.simulation.assembly import assemble, gpus, with_requests
from xonar_prefect.core.simulation.comparison import QueueFigures
from xonar_prefect.files.profiles import read_profiles


def searched(
    world: World, queues: Mapping[str, Sequence[Submission]], *, steps: int, seed: int
) -> list[float]:
    """Return for each queue the average JCT that a search with perfect knowledge finds."""
    (model,) = {device.model for device in world.devices}
    dice = Random(seed)
    found = []
    for queue in queues.values():
        slowdowns = [
            [
                math.inf
                if world.truth.out_of_memory([one.kind, other.kind], model)
                else world.truth.slowdown(one.kind, [other.kind], model)
                for other in queue
            ]
            for one in queue
        ]
        seconds = [each.solo_seconds for each in queue]
        found.append(best_average(seconds, slowdowns, steps=steps, dice=dice))
    return found


def reached(
    ours: Sequence[QueueFigures], base: Sequence[QueueFigures], best: Sequence[float]
) -> tuple[float, float, float]:
    """Return which share of the possible gain was reached, with its 95 % interval.

    The share is a ratio of means over queues; its interval follows from the residuals.
    """
    gained = [
        (theirs.average_jct_s or 0.0) - (each.average_jct_s or 0.0)
        for each, theirs in zip(ours, base, strict=True)
    ]
    possible = [
        (theirs.average_jct_s or 0.0) - each for theirs, each in zip(base, best, strict=True)
    ]
    share = fmean(gained) / fmean(possible)
    residuals = [gain - share * most for gain, most in zip(gained, possible, strict=True)]
    half = student_t_quantile(len(gained) - 1) * stdev(residuals) / math.sqrt(len(gained))
    half /= fmean(possible)
    return share, share - half, share + half


def report(
    title: str,
    world: World,
    kinds: Sequence[str],
    *,
    seeds: Sequence[int],
    count: int,
    policies: Sequence[str],
    steps: int,
    remember: bool = False,
) -> None:
    """Print how policies compare with `parallel`, and with what is possible."""
    by_seed = {}
    table = new_table(
        f"{title}: share of the gain over {BASELINE} that a search with perfect knowledge finds",
        "policy",
        "seed",
        "share (95 %)",
        f"search / {BASELINE}",
    )
    for seed in seeds:
        drawn = queues_of_ten(kinds, seed, count)
        queues = {name: with_requests(world, queue) for name, queue in drawn.items()}
        by_seed[seed] = compare(world, queues, policies, remember=remember)
        best = searched(world, queues, steps=steps, seed=seed)
        base = by_seed[seed][BASELINE]
        limit = fmean(best) / fmean([each.average_jct_s or 0.0 for each in base])
        for name, figures in by_seed[seed].items():
            if name != BASELINE:
                share, low, high = reached(figures, base, best)
                table.add_row(
                    name, str(seed), f"{share:.1%} ({low:.1%} to {high:.1%})", f"{limit:.3f}"
                )
    show(ratios(title, by_seed), table)


def main() -> None:
    """Print the tables."""
    parser = arguments("Policies against perfect knowledge", "profiles_stages.csv")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the search in each queue")
    options = parser.parse_args()
    profiles = read_profiles(data(options.data, "profiles_stages.csv"))
    kinds = sorted(kind for kind in profiles if kind.endswith("|1gpu"))
    (model,) = {model for kind in kinds for model in profiles[kind]}
    report(
        f"Stages, one GPU, {options.queues} queues of ten a seed",
        assemble(profiles, gpus(1, model)),
        kinds,
        seeds=options.seeds,
        count=options.queues,
        policies=options.policies,
        steps=options.steps,
    )


if __name__ == "__main__":
    main()
