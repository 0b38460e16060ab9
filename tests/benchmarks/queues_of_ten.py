"""Queues of ten on one GPU whose pairs were measured; only durations are known beforehand.

Run with `python -m tests.benchmarks.queues_of_ten --data DIRECTORY`.
"""

from __future__ import annotations

from tests.benchmarks.experiments import arguments, compare, data, queues_of_ten, ratios, show
from xonar_prefect.core.simulation.assembly import assemble, gpus, with_requests
from xonar_prefect.files.colocation import read_colocations
from xonar_prefect.files.profiles import read_profiles


def main() -> None:
    """Print one table without and one with what earlier queues taught."""
    files = ("profiles_v100.csv", "colocation_v100.csv")
    options = arguments("Queues of ten, measured pairs", *files).parse_args()
    profiles = read_profiles(data(options.data, files[0]))
    pairs = read_colocations(data(options.data, files[1]), profiles)
    world = assemble(
        profiles, gpus(1, "V100"), throughputs=pairs.throughputs, clashes=pairs.clashes
    )
    for remember in (False, True):
        by_seed = {}
        for seed in options.seeds:
            drawn = queues_of_ten(sorted(profiles), seed, options.queues)
            queues = {name: with_requests(world, queue) for name, queue in drawn.items()}
            by_seed[seed] = compare(world, queues, options.policies, remember=remember)
        title = "Observations kept between queues" if remember else "Every queue from the start"
        show(ratios(f"{title}, {options.queues} queues a seed", by_seed))


if __name__ == "__main__":
    main()
