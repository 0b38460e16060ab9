"""How long decisions and the store take; prints figures and judges nothing (`make bench`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from tests.core.building import device, profile, resident, snapshot, training
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.policies import POLICIES
from xonar_prefect.store import Store

_RECIPE = Recipe(flow="flow", entrypoint=None, task="train")


def queue(length: int, devices: int = 8) -> Snapshot:
    """Build a queue of twenty kinds before devices of which half have one training each."""
    held = [
        training(
            f"t{number}",
            float(number),
            key=f"kind-{number % 20}",
            active=0.1 + 0.04 * (number % 20),
            peak=1000 + 500 * (number % 20),
        )
        for number in range(length)
    ]
    beside = [
        resident(training(f"r{index}", active=0.5, peak=4000), 5000, on=[index])
        for index in range(devices)
    ]
    return snapshot(
        held, [device(index, *beside[index : index + index % 2]) for index in range(devices)]
    )


def milliseconds(work: Callable[[], object], *, seconds: float = 0.5) -> float:
    """Return the mean duration of the work, repeated for about that long."""
    count, begin = 0, perf_counter()
    while (elapsed := perf_counter() - begin) < seconds or count == 0:
        work()
        count += 1
    return elapsed / count * 1000


def main() -> None:
    """Print one table."""
    table = Table("what", "how many", "ms each", title="Benchmarks")
    for name, policy in sorted(POLICIES.items()):
        for length in (10, 100, 1000):
            moment = queue(length)
            spent = milliseconds(lambda policy=policy, moment=moment: policy.decide(moment))
            table.add_row(f"decide, {name}", f"{length} held", f"{spent:.2f}")
    with (
        tempfile.TemporaryDirectory() as directory,
        Store.open(f"sqlite:///{Path(directory) / 'store.db'}") as store,
    ):
        for number in range(1000):
            known = profile(f"kind-{number}", 0.5, 1000)
            store.ingest_profile(f"a{number}", known, _RECIPE, float(number))
        for what, work in (
            ("profiles of a kind", lambda: store.profiles_for("kind-500")),
            ("recipes of a flow", lambda: store.recipes_for("flow", None)),
            ("an artifact again", lambda: store.ingest_profile("a1", known, _RECIPE, 1.0)),
        ):
            table.add_row(f"store, {what}", "1000 kinds", f"{milliseconds(work):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
