"""Simulates every queue under every policy, with progress; what is done outlives a Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from xonar_prefect.cli.simulate.explanation import Explanation
from xonar_prefect.cli.simulate.scenario import Scenario
from xonar_prefect.core.policies import Policy
from xonar_prefect.core.simulation import Learnt, Outcome, Run, simulate
from xonar_prefect.core.simulation.comparison import QueueFigures, figures_of

_MOST_DRAWN = 20_000
"""Trainings of a longer queue are not kept for drawing: nobody could tell them apart."""


@dataclass(slots=True)
class Performed:
    """What was simulated so far.

    Attributes:
        figures: Figures of completed queues, by policy.
        outcomes: Completed trainings of these queues, by policy and queue.
        pairs: Kinds that shared a device: device model and the two, sorted.
        refusals: Sentences about trainings that no device can take, by name.
        interrupted: What was under way when the user ended it, as a sentence.
    """

    figures: dict[str, list[QueueFigures]] = field(default_factory=dict)
    outcomes: dict[str, dict[str, tuple[Outcome, ...]]] = field(default_factory=dict)
    pairs: set[tuple[str, str, str]] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    interrupted: str | None = None


def perform(
    scenario: Scenario,
    policies: Sequence[Policy],
    *,
    remember: bool,
    keep: bool = False,
    explanation: Explanation | None = None,
) -> Performed:
    """Simulate every queue under every policy, queue by queue, so that queues stay paired.

    Args:
        scenario: What to simulate.
        policies: Under which policies.
        remember: Whether what one queue taught is known in the next.
        keep: Whether to keep the single trainings, for drawing.
        explanation: Is told the decisions about its queue.
    """
    done = Performed(figures={policy.name: [] for policy in policies})
    learnt: dict[str, Learnt] = {}
    trainings = sum(len(queue) for queue in scenario.queues.values())
    now = "reading"
    completed = 0
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("Simulating", total=trainings * len(policies))

        def finished(_: Outcome) -> None:
            nonlocal completed
            completed += 1
            progress.advance(bar)

        try:
            for name, queue in scenario.queues.items():
                for policy in policies:
                    completed = 0
                    now = f"{policy.name} had completed {{}} of {len(queue)} trainings{_of(name)}"
                    run = simulate(
                        scenario.world,
                        queue,
                        policy,
                        learnt=learnt.get(policy.name, scenario.learnt)
                        if remember
                        else scenario.learnt,
                        clock=time.perf_counter,
                        watch=None if explanation is None else explanation.watch(name, policy.name),
                        finished=finished,
                    )
                    learnt[policy.name] = run.learnt
                    _take(done, scenario, name, policy.name, run)
                    if keep and len(run.outcomes) <= _MOST_DRAWN:
                        done.outcomes.setdefault(policy.name, {})[name] = run.outcomes
        except KeyboardInterrupt:
            done.interrupted = f"Interrupted when {now.format(completed)}."
            if len(scenario.queues) > 1:
                _keep_paired(done)
    return done


def _of(queue: str) -> str:
    return f" of queue '{queue}'" if queue else ""


def _take(done: Performed, scenario: Scenario, queue: str, policy: str, run: Run) -> None:
    done.figures[policy].append(figures_of(queue, run, len(scenario.world.devices)))
    done.pairs |= run.pairs
    done.refusals.update((each.training.name, each.reason) for each in run.refused)


def _keep_paired(done: Performed) -> None:
    """Forget queues that not every policy has completed: their figures would not be paired."""
    complete = min(len(queues) for queues in done.figures.values())
    for policy, queues in done.figures.items():
        for figures in queues[complete:]:
            done.outcomes.get(policy, {}).pop(figures.queue, None)
        del queues[complete:]
