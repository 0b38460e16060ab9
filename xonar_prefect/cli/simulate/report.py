"""The result of simulations for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xonar_prefect.cli.output import UNKNOWN
from xonar_prefect.cli.simulate.explanation import HOLDS_SHOWN, Explanation
from xonar_prefect.cli.simulate.performance import Performed
from xonar_prefect.cli.simulate.scenario import Scenario
from xonar_prefect.core.simulation.comparison import (
    Difference,
    QueueFigures,
    difference,
    summary,
    to_json,
)

BASELINE = "parallel"
_MOST_QUEUES = 12
_MOST_REFUSALS = 3
_WHOLE_FROM_S = 100_000.0


def as_json(
    scenario: Scenario, done: Performed, seed: int, explanation: Explanation | None
) -> dict[str, Any]:
    """Return everything as JSON values."""
    found: dict[str, Any] = {
        "policies": to_json(done.figures, BASELINE),
        "devices": len(scenario.world.devices),
        "queues": len(scenario.queues),
        "trainings": sum(len(queue) for queue in scenario.queues.values()),
        "seed": seed,
        "startup_s": scenario.world.startup_seconds,
        "shared_pairs": len(done.pairs),
        "shared_pairs_measured": sum(_is_measured(scenario, pair) for pair in done.pairs),
        "notes": notes(scenario, done),
        "interrupted": done.interrupted,
    }
    if explanation is not None:
        found["explanation"] = {
            "queue": explanation.queue,
            "decisions": explanation.decisions,
        }
    return found


def _is_measured(scenario: Scenario, pair: tuple[str, str, str]) -> bool:
    model, first, second = pair
    return scenario.measured.is_measured((first, second), model)


def notes(scenario: Scenario, done: Performed) -> list[str]:
    """Return in sentences what the figures rest on."""
    found = list(scenario.notes)
    unmeasured = [pair for pair in done.pairs if not _is_measured(scenario, pair)]
    if unmeasured:
        found.append(
            f"Not measured together: {len(unmeasured)} of {len(done.pairs)} pairs of kinds that "
            "shared a GPU; such a pair slows down by the processor-sharing model, 1 + u v."
        )
    blind = {
        kind
        for model, *kinds in unmeasured
        for kind in kinds
        if not _knows_activity(scenario, kind, model)
    }
    if blind:
        found.append(
            f"The active fraction of {len(blind)} of these kinds is unknown; such a kind counts as "
            "always active, which leaves no gain from sharing."
        )
    if done.refusals:
        shown = list(done.refusals.items())[:_MOST_REFUSALS]
        reasons = " ".join(f"'{name}': {reason}" for name, reason in shown)
        found.append(
            f"Refused because they fit nowhere, and in no figure: {len(done.refusals)} of the "
            f"trainings. {reasons}"
        )
    failed = sum(each.failed for queues in done.figures.values() for each in queues)
    if failed:
        found.append(
            f"Failed because they ran out of memory in every release, and in no figure: {failed} "
            "of the trainings."
        )
    return found


def _knows_activity(scenario: Scenario, kind: str, model: str) -> bool:
    profile = scenario.world.profiles.get(kind, {}).get(model)
    return profile is not None and profile.active_fraction is not None


def show(scenario: Scenario, done: Performed, explanation: Explanation | None) -> None:
    """Print everything for people."""
    console = Console()
    queues = len(next(iter(done.figures.values()), []))
    if queues:
        console.print(_table(done, scenario, queues))
        if len(done.figures) > 1 and BASELINE in done.figures:
            console.print(_differences(done))
        if 1 < queues <= _MOST_QUEUES:
            console.print(_by_queue(done))
    for sentence in notes(scenario, done):
        console.print(Text(sentence), soft_wrap=True)
    if explanation is not None:
        _explain(console, explanation)


def _explain(console: Console, explanation: Explanation) -> None:
    console.print(Text(f"\n{HOLDS_SHOWN}"), soft_wrap=True)
    of_queue = f" of queue '{explanation.queue}'" if explanation.queue else ""
    for policy in explanation.decisions:
        console.print(Text(f"\nDecisions{of_queue} under {policy}:", style="bold"))
        for line in explanation.lines(policy):
            console.print(Text(line), soft_wrap=True)


def _new_table(title: str, left: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.pad_edge = False
    table.add_column(left, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _table(done: Performed, scenario: Scenario, queues: int) -> Table:
    gpus = len(scenario.world.devices)
    over = f"mean of {queues} queues" if queues > 1 else "one queue"
    table = _new_table(
        f"Simulated on {gpus} GPU{'s' * (gpus > 1)}, {over}",
        "policy",
        "average\nJCT (s)",
        "p95 of\nall (s)",
        "makespan\n(s)",
        "queueing\ndelay (s)",
        "fair-\nness",
        "out of\nmemory",
        "deci-\nsions",
        "ms\neach",
    )
    for name, figures in done.figures.items():
        total = summary(figures)
        per_decision = total["seconds_per_decision"]
        table.add_row(
            *_cells(
                [
                    name,
                    _seconds(total["average_jct_s"]),
                    _seconds(total["p95_jct_over_all_s"]),
                    _seconds(total["makespan_s"]),
                    _seconds(total["average_queueing_delay_s"]),
                    _plain(total["average_fairness"]),
                    str(total["out_of_memory"]),
                    str(total["decisions"]),
                    None if per_decision is None else f"{per_decision * 1000:.2f}",
                ]
            )
        )
    return table


def _differences(done: Performed) -> Table:
    base = done.figures[BASELINE]
    table = _new_table(
        f"Against {BASELINE}, with 95 % intervals over paired queues",
        "policy",
        "average JCT",
        "p95 of a queue",
        "makespan",
    )
    for name, figures in done.figures.items():
        if name != BASELINE:
            table.add_row(
                *_cells(
                    [
                        name,
                        *(
                            _signed(difference(figures, base, figure))
                            for figure in ("average_jct_s", "p95_jct_s", "makespan_s")
                        ),
                    ]
                )
            )
    return table


def _by_queue(done: Performed) -> Table:
    table = _new_table("Average JCT (s) by queue", "queue", *done.figures)
    for row in zip(*done.figures.values(), strict=True):
        first: QueueFigures = row[0]
        table.add_row(*_cells([first.queue, *(_seconds(each.average_jct_s) for each in row)]))
    return table


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.1f}" if value < _WHOLE_FROM_S else f"{value:,.0f}"


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _signed(share: Difference | None) -> str | None:
    if share is None:
        return None
    if share.low is None or share.high is None:
        return f"{share.mean:+.1%}"
    return f"{share.mean:+.1%} ({share.low:+.1%} to {share.high:+.1%})"


def _cells(values: Sequence[str | None] | Iterable[str | None]) -> list[Text]:
    return [Text(UNKNOWN if value is None else value) for value in values]
