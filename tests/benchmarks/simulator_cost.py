"""What simulating a long trace costs: 100,000 trainings on 64 GPUs, up to 500 of them held.

Trainings come in bursts of 500, each when the one before is about done. Time is that of the
processor, so that other work on the machine counts less. Run with
`python -m tests.benchmarks.simulator_cost`.
"""

from __future__ import annotations

import argparse
from itertools import accumulate
from random import Random
from time import process_time

from tests.benchmarks.experiments import new_table, show
from xonar_prefect.core.models import Profile
from xonar_prefect.core.policies import POLICIES, policy_named
from xonar_prefect.core.simulation import Run, Submission, World, simulate
from xonar_prefect.core.simulation.assembly import assemble, gpus

MODEL = "V100"
DEVICES = 64
BURST = 500
MEAN_SECONDS = 600.0
_LOAD = 0.95  # of what the devices do when nobody shares


def world(kinds: int, seed: int) -> World:
    """Return 64 GPUs and so many kinds."""
    dice = Random(seed)
    profiles = {
        f"kind-{number:03}": {
            MODEL: Profile(
                key=f"kind-{number:03}",
                device_model=MODEL,
                active_fraction=dice.uniform(0.05, 1.0),
                step_seconds=dice.uniform(0.05, 1.0),
                peak_memory_mib=dice.randint(1000, 20000),
            )
        }
        for number in range(kinds)
    }
    return assemble(profiles, gpus(DEVICES, MODEL, 32768))


def bursts(where: World, count: int, seed: int) -> list[Submission]:
    """Return trainings that come 500 at a time."""
    dice = Random(seed)
    kinds = sorted(where.profiles)
    between_s = BURST * MEAN_SECONDS / DEVICES / _LOAD
    return [
        Submission(
            name=f"t{number}",
            kind=dice.choice(kinds),
            submitted_at_s=between_s * (number // BURST),
            solo_seconds=dice.expovariate(1 / MEAN_SECONDS),
        )
        for number in range(count)
    ]


def most_held(run: Run) -> int:
    """Return how many trainings were held at once at most."""
    changes = [(each.submission.submitted_at_s, 1) for each in run.outcomes]
    changes += [(each.started_at_s, -1) for each in run.outcomes]
    return max(accumulate(change for _, change in sorted(changes)))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description="What a long simulation costs")
    parser.add_argument("--policies", nargs="+", default=["parallel", "serial"], choices=POLICIES)
    parser.add_argument("--trainings", type=int, default=100_000)
    parser.add_argument("--kinds", type=int, nargs="+", default=[20, 200])
    options = parser.parse_args()
    table = new_table(
        f"{options.trainings:,} trainings on {DEVICES} GPUs",
        "policy",
        "kinds",
        "CPU s",
        "of which deciding",
        "decisions",
        "ms each",
        "most held",
    )
    for kinds in options.kinds:
        where = world(kinds, seed=1)
        queue = bursts(where, options.trainings, seed=1)
        for name in options.policies:
            begin = process_time()
            run = simulate(where, queue, policy_named(name), clock=process_time)
            spent = process_time() - begin
            deciding = run.decision_seconds or 0.0
            table.add_row(
                name,
                str(kinds),
                f"{spent:.1f}",
                f"{deciding:.1f}",
                f"{run.decisions:,}",
                f"{deciding / run.decisions * 1000:.2f}",
                str(most_held(run)),
            )
    show(table)


if __name__ == "__main__":
    main()
