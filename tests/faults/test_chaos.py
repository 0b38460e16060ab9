"""Trainings go on, end once and end truly while everything around them is killed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.capacity import Occupancy
from tests.faults.cluster import Cluster, cluster
from tests.faults.database import Database, Sqlite, postgresql, postgresql_programs
from tests.faults.diary import mixed_plans
from tests.faults.journal import Journal
from tests.faults.trial import Trial, strikes
from tests.faults.verdict import Evidence, assert_no_violation, hits, table
from tests.waiting import until
from xonar_prefect.devices.host_memory import host_memory

_WORKERS = 2

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < _WORKERS, reason="each worker needs a processor core of its own"
)


def from_environment(name: str, otherwise: int) -> int:
    return int(os.environ.get(f"XONAR_CHAOS_{name}") or otherwise)


@contextmanager
def database(kind: str, directory: Path) -> Iterator[Database]:
    if kind == "sqlite":
        yield Sqlite(directory)
        return
    if postgresql_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgresql() as running:
        yield running


def evidence_of(trial: Trial, cluster: Cluster, requeues: int) -> Evidence:
    """Stop the workers, and collect what there is to know."""
    left = cluster.processes()
    for worker in cluster.workers:
        worker.stop()
    until(cluster.api.is_healthy, 60.0)
    return Evidence(
        plans=trial.submitted,
        histories={run_id: cluster.api.history(run_id) for run_id in trial.submitted},
        diary=cluster.diary,
        releases={
            run_id: [
                entry
                for worker in cluster.workers
                for entry in worker.store.entries(run_id=run_id, worker=worker.name)
            ]
            for run_id in trial.submitted
        },
        events=cluster.journal.events,
        left=left,
        requeues=requeues,
    )


def hold_trial(
    directory: Path, kind: str, *, trainings: int, faults: int, cancels: int, requeues: int
) -> tuple[Evidence, str]:
    """Hold a trial; returns its evidence and what there is to say about it."""
    seed = from_environment("SEED", random.SystemRandom().randrange(10**6))
    dice = random.Random(seed)
    memory_mib = host_memory().total_bytes // 2**20
    journal = Journal(directory / "journal.jsonl")
    # Said first: a trial that hangs has a seed, too.
    print(f"seed {seed}, everything in {directory}", flush=True)
    begun_at = time.monotonic()
    with (
        database(kind, directory) as under,
        cluster(directory, journal, under, workers=_WORKERS, requeues=requeues) as it,
    ):
        trial = Trial(
            cluster=it,
            plans=mixed_plans(dice, 2 * trainings, memory_mib),
            trainings=trainings,
            strikes=strikes(dice, faults),
            cancels=cancels,
            dice=dice,
            occupancy=Occupancy(journal, memory_mib=memory_mib, trainings=3),
        )
        trial.run()
        evidence = evidence_of(trial, it, requeues)
    words = (
        f"{kind}, seed {seed}: {len(trial.submitted)} trainings, {len(evidence.strikes())} faults, "
        f"{cancels} cancels, at most {requeues} requeues of a killed training, in "
        f"{time.monotonic() - begun_at:.0f} s; at most "
        f"{trial.occupancy.most_trainings} trainings and "
        f"{trial.occupancy.highest_mib / memory_mib:.0%} of the memory on a device\n"
        f"{table(evidence)}"
    )
    print(words)
    return evidence, words


@needs_two_cores
@pytest.mark.timeout(300)
def test_twenty_trainings_outlive_five_faults(tmp_path: Path) -> None:
    evidence, _ = hold_trial(tmp_path, "sqlite", trainings=20, faults=5, cancels=2, requeues=1)
    assert_no_violation(evidence)
    assert sum(hits(evidence).values()) == 5


@needs_two_cores
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "requeues"), [("postgresql", 0), ("sqlite", 1)])
def test_three_hundred_trainings_outlive_forty_faults(
    tmp_path: Path, kind: str, requeues: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set `XONAR_CHAOS_TRAININGS`, `_FAULTS`, `_CANCELS` and `_SEED` for another trial."""
    faults = from_environment("FAULTS", 48)
    evidence, words = hold_trial(
        tmp_path,
        kind,
        requeues=requeues,
        trainings=from_environment("TRAININGS", 300),
        faults=faults,
        cancels=from_environment("CANCELS", 15),
    )
    with capsys.disabled():
        print(f"\n{words}")
    assert_no_violation(evidence)
    assert sum(hits(evidence).values()) == faults
    assert min(hits(evidence).values()) >= min(3, faults // 4)
