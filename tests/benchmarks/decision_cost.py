"""What one decision costs, by the queue, its kinds, the devices and their free slots.

Time is that of the processor, so that other work on the machine counts less. Run with
`python -m tests.benchmarks.decision_cost`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from time import process_time

from tests.benchmarks.experiments import new_table, show
from tests.core.building import MODEL, device, profile, resident, snapshot
from xonar_prefect.core.interference import KeptModel
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.policies import POLICIES

# held, kinds, devices
CASES = (
    (100, 20, 8),
    (1_000, 20, 8),
    (1_000, 200, 64),
    (10_000, 20, 256),
    (10_000, 200, 64),
    (10_000, 200, 256),
    (10_000, 10_000, 256),
)


def moment(held: int, kinds: int, devices: int, free: int) -> Snapshot:
    """Return a queue before devices of which `free` have one training each, the rest two."""

    # as in a worker, those of a kind share what is known of it
    known = [
        profile(
            f"kind-{kind:05}",
            0.05 + 0.9 * (kind * 7919 % kinds) / kinds,
            1000 + 6000 * (kind * 104729 % kinds) // kinds,
        )
        for kind in range(kinds)
    ]

    def one(name: str, number: int, seconds: float) -> Training:
        mine = known[number % kinds]
        return Training(
            run_id=f"run-{name}",
            name=name,
            submitted_at_s=float(number),
            profile_key=mine.key,
            profiles={MODEL: mine},
            remaining_seconds=seconds,
        )

    with_room = range(0, devices, devices // free)
    waiting = [one(f"t{number}", number, 60.0 + number * 7919 % 36000) for number in range(held)]
    there = [
        [
            resident(one(f"r{index}-{slot}", index + slot, 600.0 + index), 4000, on=[index])
            for slot in range(1 if index in with_room else 2)
        ]
        for index in range(devices)
    ]
    return snapshot(
        waiting,
        [device(index, *there[index], memory=32000) for index in range(devices)],
        now=20000.0,
        max_wait_seconds=1e9,
    )


def _spent(policy: str, now: Snapshot, repeat: int) -> list[float]:
    """Return what deciding took each time, in milliseconds; what a worker keeps is kept."""
    spent = []
    kept = KeptModel()
    for _ in range(repeat):
        begin = process_time()
        POLICIES[policy].decide(replace(now, interference=kept.of(now)))
        spent.append((process_time() - begin) * 1000)
    return spent


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description="What a decision costs")
    parser.add_argument("--policies", nargs="+", default=sorted(POLICIES), choices=sorted(POLICIES))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    table = new_table(
        "Milliseconds of processor time for one decision (the fastest, and the first)",
        "policy",
        "held",
        "kinds",
        "devices",
        "free slots",
        "with holds",
        "first",
        "without",
        "first",
    )
    for name in options.policies:
        for held, kinds, devices in CASES:
            for free in (1, devices // 2):
                now = moment(held, kinds, devices, free)
                figures = []
                for wanted in (True, False):
                    spent = _spent(name, replace(now, explained=wanted), options.repeat)
                    figures += [f"{min(spent):.1f}", f"{spent[0]:.1f}"]
                table.add_row(name, f"{held:,}", f"{kinds:,}", str(devices), str(free), *figures)
    show(table)


if __name__ == "__main__":
    main()
