"""Shows the queue while it runs: a table on a terminal, otherwise a line per change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from xonar_prefect.cli import output
from xonar_prefect.cli.demo.watching import Stage, TrainingView

_BAR_CELLS = 10
_STYLES = {
    Stage.HELD: "yellow",
    Stage.STARTING: "cyan",
    Stage.RUNNING: "blue",
    Stage.ENDED: "green",
}

Show = Callable[[tuple[TrainingView, ...]], None]


@contextmanager
def waiting(console: Console, sentence: str) -> Iterator[None]:
    """Show what is being waited for while the block runs."""
    if not console.is_terminal:
        console.print(Text(sentence), soft_wrap=True)
        yield
        return
    with console.status(Text(sentence)):
        yield


@contextmanager
def shown(console: Console, title: str, clock: Callable[[], float] = time.time) -> Iterator[Show]:
    """Provide a function that shows the queue as it is at the moment of the call."""
    if not console.is_terminal:
        printed: dict[str, str] = {}
        started_at_s = clock()

        def print_changes(views: tuple[TrainingView, ...]) -> None:
            for line in changes(printed, views):
                console.print(Text(f"{clock() - started_at_s:6.1f} s  {line}"), soft_wrap=True)

        yield print_changes
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda views: live.update(render(views, title, clock()), refresh=True)


def render(views: Iterable[TrainingView], title: str, now_s: float) -> RenderableType:
    """Return the queue as a table, one line per training, and under it the reasons."""
    views = tuple(views)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for heading in ("training", "state", "device", "beside", "progress", "for"):
        table.add_column(heading, no_wrap=True)
    for view in views:
        table.add_row(
            Text(view.name),
            Text(view.state, style=_style(view)),
            Text(", ".join(output.device(each) for each in view.devices)),
            Text(", ".join(view.partners)),
            Text(_progress(view)),
            Text(output.duration(_age_seconds(view, now_s)) or output.UNKNOWN),
        )
    return Group(table, *(Text(line) for line in (*reasons(views), summary(views))))


def reasons(views: Iterable[TrainingView]) -> list[str]:
    """Return why trainings are held, one line per reason, and why the last was released."""
    views = tuple(views)
    held: dict[str, list[str]] = {}
    for view in views:
        if view.stage is Stage.HELD and view.reason:
            held.setdefault(view.reason, []).append(view.name)
    lines = [f"{', '.join(names)} held: {reason}" for reason, names in held.items()]
    released = [
        (view.released_at_s, view.name, view.reason)
        for view in views
        if view.stage in {Stage.STARTING, Stage.RUNNING} and view.released_at_s and view.reason
    ]
    if released:
        _, name, reason = max(released)
        lines.append(f"{name}: {reason}")
    return lines


def summary(views: Iterable[TrainingView]) -> str:
    """Return how many trainings are at which stage."""
    stages = [view.stage for view in views]
    return ", ".join(f"{stages.count(stage)} {stage.value}" for stage in Stage)


def changes(printed: dict[str, str], views: Iterable[TrainingView]) -> Iterator[str]:
    """Yield a line for every training whose line is another one than before.

    A training that the worker has not decided about yet has none.

    Args:
        printed: The lines so far by run id; brought up to date here.
        views: Every training now.
    """
    for view in views:
        line = describe(view)
        undecided = view.stage is Stage.HELD and not view.reason
        if printed.get(view.run_id) != line and not undecided:
            printed[view.run_id] = line
            yield line


def describe(view: TrainingView) -> str:
    """Return one line about a training, the same as long as nothing changes but its progress."""
    if view.stage is Stage.ENDED:
        seconds = None if view.ended_at_s is None else view.ended_at_s - view.submitted_at_s
        return f"{view.name}: {view.state}, JCT {output.duration(seconds) or output.UNKNOWN}"
    if view.stage is Stage.HELD:
        return f"{view.name}: held - {view.reason or 'not decided yet'}"
    where = ", ".join(output.device(each) for each in view.devices) or "no device"
    beside = f"beside {', '.join(view.partners)}" if view.partners else "alone"
    doing = "profiling" if view.profiling else view.stage.value
    return f"{view.name}: {doing} on {where}, {beside}"


def _style(view: TrainingView) -> str:
    failed = view.stage is Stage.ENDED and not view.completed
    return "red" if failed else _STYLES[view.stage]


def _progress(view: TrainingView) -> str:
    if view.stage is Stage.ENDED or view.steps_done is None:
        return ""
    if not view.steps_total:
        return f"{view.steps_done} steps"
    share = min(1.0, view.steps_done / view.steps_total)
    full = round(share * _BAR_CELLS)
    return f"{'━' * full}{'─' * (_BAR_CELLS - full)} {share:4.0%}"


def _age_seconds(view: TrainingView, now_s: float) -> float | None:
    """Return how long it has been held, or has had its device, or took from submission to end."""
    if view.stage is Stage.ENDED:
        return None if view.ended_at_s is None else view.ended_at_s - view.submitted_at_s
    since_s = view.submitted_at_s if view.stage is Stage.HELD else view.released_at_s
    return None if since_s is None else max(0.0, now_s - since_s)
