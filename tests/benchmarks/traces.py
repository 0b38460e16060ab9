"""Traces of clusters: arrivals over days, gangs, many GPUs.

`trace_stages.csv` on 64 GPUs, and the Philly sample on 8, whose models are unknown: each is drawn
from the one-GPU profiles by the seed. Run with
`python -m tests.benchmarks.traces --data DIRECTORY`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from tests.benchmarks.experiments import BASELINE, arguments, data, new_table, show
from xonar_prefect.core.decisions import Decision
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.policies import policy_named
from xonar_prefect.core.simulation import Submission, World, simulate
from xonar_prefect.core.simulation.assembly import assemble, gpus, with_requests
from xonar_prefect.core.simulation.comparison import figures_of
from xonar_prefect.core.simulation.overtaking import OvertakingWatch, waited_beyond_bound
from xonar_prefect.files.profiles import read_profiles
from xonar_prefect.files.traces import read_trace


def report(title: str, world: World, queue: Sequence[Submission], policies: Iterable[str]) -> None:
    """Print how policies serve one trace."""
    limit = world.limits.max_wait_seconds
    table = new_table(
        f"{title}, max_wait {limit:g} s; JCT, p95 and makespan as ratios to {BASELINE}",
        "policy",
        "JCT",
        "p95",
        "makespan",
        "fairness",
        "worst",
        "overtaken",
        "longest wait",
        "decisions",
        "ms each",
        "seconds",
    )
    base = None
    for name in dict.fromkeys([BASELINE, *policies]):
        watch = OvertakingWatch()
        heed: Callable[[Snapshot, tuple[Decision, ...]], None] | None = (
            watch if math.isfinite(limit) else None
        )
        begin = time.perf_counter()
        run = simulate(world, queue, policy_named(name), clock=time.perf_counter, watch=heed)
        spent = time.perf_counter() - begin
        figures = figures_of("", run, len(world.devices))
        base = base or figures
        late = watch.count + waited_beyond_bound(run.outcomes, limit) if heed else None
        waits = [each.served.queueing_delay_s for each in run.outcomes]
        table.add_row(
            name,
            *(
                f"{getattr(figures, figure) / getattr(base, figure):.3f}"
                for figure in ("average_jct_s", "p95_jct_s", "makespan_s")
            ),
            f"{figures.average_fairness:.2f}",
            f"{figures.worst_fairness:.2f}",
            "-" if late is None else str(late),
            f"{max(waits) / 3600:.1f} h",
            str(run.decisions),
            f"{(figures.seconds_per_decision or 0.0) * 1000:.2f}",
            f"{spent:.1f}",
        )
    show(table)


def main() -> None:
    """Print the tables."""
    files = ("profiles_stages.csv", "trace_stages.csv", "trace_philly_1gpu.csv")
    parser = arguments("Traces of clusters", *files)
    parser.add_argument("--max-wait", type=float, nargs="+", default=[math.inf, 86400.0])
    parser.add_argument("--only", choices=["stages", "philly"])
    options = parser.parse_args()
    profiles = read_profiles(data(options.data, files[0]))
    (model,) = {model for by_model in profiles.values() for model in by_model}
    for limit in options.max_wait:
        if options.only != "philly":
            (queue,) = read_trace(data(options.data, files[1]), profiles).values()
            world = _bounded(assemble(profiles, gpus(64, model)), limit)
            title = f"{len(queue)} trainings on 64 GPUs"
            report(title, world, with_requests(world, queue), options.policies)
        if options.only != "stages":
            kinds = sorted(kind for kind in profiles if kind.endswith("|1gpu"))
            for seed in options.seeds:
                dice = Random(seed)
                path = data(options.data, files[2])
                (queue,) = read_trace(path, profiles, partial(dice.choice, kinds)).values()
                world = _bounded(assemble(profiles, gpus(8, model)), limit)
                title = f"Philly, {len(queue)} trainings on 8 GPUs, seed {seed}"
                report(title, world, with_requests(world, queue), options.policies)


def _bounded(world: World, max_wait_seconds: float) -> World:
    return replace(world, limits=replace(world.limits, max_wait_seconds=max_wait_seconds))


if __name__ == "__main__":
    main()
