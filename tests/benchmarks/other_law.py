"""A generated world whose interference follows another law than the policies' prior.

The law is a roofline: trainings on a device have an active fraction u, which profiles tell, and a
share b of the memory bandwidth that they use while active, which nobody tells. Alone both are met.
Together everybody slows down by the scarcer of the two,

    slowdown = max(1, sum of u, sum of u b) + 0.3 (number of partners) c

with c a loss in the caches that each kind suffers by its own degree, from 0 to 1. The prior,
1 + 1.1 u v, is wrong on both sides: half-active pairs do not slow down here, and two trainings of
low activity may, by c. Run with `python -m tests.benchmarks.other_law`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.benchmarks.against_perfect_knowledge import report
from tests.benchmarks.experiments import arguments
from xonar_prefect.core.models import Profile
from xonar_prefect.core.simulation import World
from xonar_prefect.core.simulation.assembly import assemble, gpus

MODEL = "roofline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The law; see above.

    Attributes:
        active_fractions: u by kind.
        bandwidths: b by kind.
        cache_losses: c by kind.
    """

    active_fractions: Mapping[str, float]
    bandwidths: Mapping[str, float]
    cache_losses: Mapping[str, float]

    def slowdown(self, kind: str, partners: Sequence[str], device_model: str) -> float:
        """Return step time beside these partners / step time alone."""
        everybody = [kind, *partners]
        active = sum(self.active_fractions[each] for each in everybody)
        bandwidth = sum(self.active_fractions[each] * self.bandwidths[each] for each in everybody)
        return max(1.0, active, bandwidth) + 0.3 * len(partners) * self.cache_losses[kind]

    def out_of_memory(self, kinds: Sequence[str], device_model: str) -> bool:
        """Return False: peaks say it all."""
        return False


def generated(seed: int, kinds: int = 30) -> World:
    """Return one GPU and kinds with random properties; half of all pairs fit into its memory."""
    dice = Random(seed)
    names = [f"kind-{number:02}" for number in range(kinds)]
    active = {name: dice.uniform(0.05, 1.0) for name in names}
    profiles = {
        name: {
            MODEL: Profile(
                key=name,
                device_model=MODEL,
                active_fraction=active[name],
                step_seconds=dice.uniform(0.05, 1.0),
                peak_memory_mib=dice.randint(2000, 20000),
            )
        }
        for name in names
    }
    law = Roofline(
        active_fractions=active,
        bandwidths={name: dice.uniform(0.2, 2.0) for name in names},
        cache_losses={name: dice.random() for name in names},
    )
    return replace(assemble(profiles, gpus(1, MODEL, 24000)), truth=law)


def main() -> None:
    """Print the tables without and with what earlier queues taught."""
    parser = arguments("A world with another law of interference")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the search in each queue")
    options = parser.parse_args()
    world = generated(seed=1)
    for remember in (False, True):
        report(
            "Another law, observations kept" if remember else "Another law",
            world,
            sorted(world.profiles),
            seeds=options.seeds,
            count=options.queues,
            policies=options.policies,
            steps=options.steps,
            remember=remember,
        )


if __name__ == "__main__":
    main()
