"""Predicted against measured slowdowns of real pairs that run together and alone by turns.

A machine whose own speed wanders makes step times that were taken minutes apart hard to compare. So
here two of the demonstration's trainings run on one processor core, and every few seconds one of
them is halted for a while: together, the first alone, together, the second alone. Predicted is
what follows from the profiles that both took of themselves alone, once without any observation,
and once with what was observed of all other pairs. There is no server and no worker. Takes two or
three minutes per pair; run with `python -m tests.benchmarks.pairs_in_turns`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import median

from rich.console import Console

from tests.benchmarks.experiments import new_table, show
from xonar_prefect.cli.demo.trainings import CNN, QUICK, STORE, Kind
from xonar_prefect.core.interference import InterferenceModel, Load
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.profiling.injection import Orders, reports_directory, watched
from xonar_prefect.profiling.reports import read_reports, read_statuses
from xonar_prefect.run_directory import Status

Seen = list[Observation]

FLOWS = Path(__file__).parents[2] / "flows"
ENVIRONMENT = {
    "PYTHONPATH": f"{FLOWS.parent}{os.pathsep}{FLOWS}",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
# The bare functions: no run of Prefect's, which would start a server on the same core.
PROGRAM = """
import {flow} as file
file.train = file.train.fn
file.{flow}.fn(epochs=100_000)
"""
SETTLING_SECONDS = 1.5  # a halted training counts its halt as a step
LOOK_SECONDS = 0.2
LEAST_STEPS = 10


@dataclass(frozen=True, slots=True)
class Training:
    """A training on one core that can be halted."""

    kind: Kind
    process: subprocess.Popen[bytes]
    reports: Path

    def status(self) -> Status:
        """Return how far it is."""
        assert self.process.poll() is None, f"{self.kind.name} ended"
        (status,) = read_statuses(self.reports)
        return status

    def profile(self) -> Profile:
        """Wait until it has measured itself."""
        while True:
            assert self.process.poll() is None, f"{self.kind.name} ended"
            for report in read_reports(self.reports):
                if report.settled:
                    return report.profile
            time.sleep(LOOK_SECONDS)

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Halt it while the body runs."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def running(kind: Kind, core: int) -> Iterator[Training]:
    """Run a training on a core while the body runs."""
    with reports_directory(Orders(starter=os.getpid())) as directory:
        assert directory is not None, "there is no room for reports"
        process = subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-c", PROGRAM.format(flow=kind.flow)],
            env=watched(os.environ | ENVIRONMENT, directory),
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Training(kind, process, directory)
        finally:
            process.kill()
            process.wait()


def step_seconds(trainings: tuple[Training, ...], seconds: float) -> list[float]:
    """Return the step times of trainings over the next seconds, in which each takes some steps."""
    time.sleep(SETTLING_SECONDS)
    before = [training.status() for training in trainings]
    time.sleep(seconds)
    while True:
        after = [training.status() for training in trainings]
        steps = [
            last.steps_done - first.steps_done for first, last in zip(before, after, strict=True)
        ]
        if min(steps) >= LEAST_STEPS:
            return [
                (last.stepping_seconds - first.stepping_seconds) / number
                for first, last, number in zip(before, after, steps, strict=True)
            ]
        time.sleep(LOOK_SECONDS)


def slowdowns(one: Training, other: Training, cycles: int, seconds: float) -> tuple[float, float]:
    """Return how much slower the two are together than alone: medians over the cycles."""
    found: tuple[list[float], list[float]] = [], []
    for _ in range(cycles):
        together = [step_seconds((one, other), seconds)]
        with other.halted():
            alone = step_seconds((one,), seconds)
        together.append(step_seconds((one, other), seconds))
        with one.halted():
            alone += step_seconds((other,), seconds)
        for each in (0, 1):
            found[each].append((together[0][each] + together[1][each]) / 2 / alone[each])
    return median(found[0]), median(found[1])


def observe(pair: tuple[Kind, Kind], options: argparse.Namespace) -> tuple[list[Profile], Seen]:
    """Run a pair, and return the profiles of the two and what each suffered beside the other."""
    with ExitStack() as stack:
        one = stack.enter_context(running(pair[0], options.core))
        profiles = [one.profile()]
        with one.halted():
            other = stack.enter_context(running(pair[1], options.core))
            profiles.append(other.profile())
        measured = slowdowns(one, other, options.cycles, options.seconds)
    names = [kind.name for kind in pair]
    return [replace(profile, key=name) for profile, name in zip(profiles, names, strict=True)], [
        Observation(
            device_model=profiles[0].device_model,
            profile_key=name,
            partner_keys=(partner,),
            slowdown=slowdown,
            steps=1000,
        )
        for name, partner, slowdown in zip(names, reversed(names), measured, strict=True)
    ]


def predicted(
    each: Observation, learnt_from: Iterable[Observation], profiles: Mapping[str, Profile]
) -> float:
    """Return what is predicted in the place of an observation."""
    model = InterferenceModel.from_observations(learnt_from, profiles.values())
    own, *partners = (Load(key, None) for key in (each.profile_key, *each.partner_keys))
    return model.expect(own, partners, each.device_model)


def those_in(each: Observation) -> frozenset[str]:
    """Return the kinds that ran together."""
    return frozenset((each.profile_key, *each.partner_keys))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description="Slowdowns of pairs, by turns")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    console = Console()
    profiles: dict[str, Profile] = {}
    seen: Seen = []
    for pair in combinations_with_replacement((CNN, STORE, QUICK), 2):
        console.print(f"{pair[0].name} beside {pair[1].name} ...")
        taken, observed = observe(pair, options)
        profiles |= {profile.key: profile for profile in taken}
        seen += observed
    table = new_table(
        "Slowdown beside a partner",
        "training",
        "active",
        "partner",
        "measured",
        "predicted at first",
        "from all other pairs",
    )
    errors: tuple[list[float], list[float]] = [], []
    for each in seen:
        of_others = [other for other in seen if those_in(other) != those_in(each)]
        both = predicted(each, (), profiles), predicted(each, of_others, profiles)
        for known, one in zip(errors, both, strict=True):
            known.append(abs(one - each.slowdown))
        table.add_row(
            each.profile_key,
            f"{profiles[each.profile_key].active_fraction or math.nan:.0%}",
            *each.partner_keys,
            *(f"{figure:.2f}" for figure in (each.slowdown, *both)),
        )
    show(table)
    at_first, then = map(median, errors)
    console.print(f"Median error {at_first:.2f} at first, {then:.2f} from all other pairs.")


if __name__ == "__main__":
    main()
