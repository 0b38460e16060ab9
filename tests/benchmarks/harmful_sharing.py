"""Where every pair is slower than one after the other: what does trying cost against `serial`?

The gain of each pair is drawn from 0.6 to 0.95. Run with
`python -m tests.benchmarks.harmful_sharing`.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from random import Random

from tests.benchmarks.experiments import arguments, compare, queues_of_ten, ratios, show
from xonar_prefect.core.models import Profile
from xonar_prefect.core.simulation import World
from xonar_prefect.core.simulation.assembly import assemble, gpus

MODEL = "harmful"


def generated(seed: int, kinds: int = 20) -> World:
    """Return one GPU on which no pair is worth it, whatever active fractions promise."""
    dice = Random(seed)
    names = [f"kind-{number:02}" for number in range(kinds)]
    profiles = {
        name: {
            MODEL: Profile(
                key=name,
                device_model=MODEL,
                active_fraction=dice.uniform(0.1, 1.0),
                step_seconds=dice.uniform(0.05, 1.0),
                peak_memory_mib=1000,
            )
        }
        for name in names
    }
    throughputs = {}
    for first, second in combinations_with_replacement(names, 2):
        gain = dice.uniform(0.6, 0.95)
        share = 0.5 if first == second else dice.uniform(0.35, 0.65)
        throughputs[MODEL, first, second] = gain * share
        throughputs[MODEL, second, first] = gain * (1 - share)
    return assemble(profiles, gpus(1, MODEL, 24000), throughputs=throughputs)


def main() -> None:
    """Print the tables without and with what earlier queues taught."""
    options = arguments("Sharing that hurts").parse_args()
    for remember in (False, True):
        by_seed = {}
        for seed in options.seeds:
            world = generated(seed)
            queues = queues_of_ten(sorted(world.profiles), seed, options.queues)
            by_seed[seed] = compare(world, queues, {*options.policies, "serial"}, remember=remember)
        title = "Harmful sharing, observations kept" if remember else "Harmful sharing"
        show(ratios(title, by_seed, base="serial"))


if __name__ == "__main__":
    main()
