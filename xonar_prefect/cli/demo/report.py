"""The result of a queue: figures per training, as a table and as JSON. Unknown stays unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from xonar_prefect.cli import output
from xonar_prefect.cli.demo.watching import TrainingView
from xonar_prefect.core.ledger import CoRun
from xonar_prefect.core.models import Profile
from xonar_prefect.worker.co_runs import LEAST_STEPS, measured_slowdown, solo_step_seconds

_EXPLAINED = 3  # the reasons of all are in the JSON and on the run pages


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """One row of the result; None is unknown.

    Attributes:
        name: Its name in the queue.
        active_fraction: Active fraction of its kind.
        active_fraction_interval: Its 95 % interval.
        peak_memory_mib: Its peak memory.
        partner: With whom it made most of its steps; None when it ran alone.
        predicted_slowdown: Predicted for it beside this partner; 1 when it ran alone.
        measured_slowdown: Step time beside the partner / measured step time alone; when it ran
            alone, its own step time / that of its kind.
        jct_s: From submission to its end; None unless it completed.
        held_s: From submission to its release to a device.
        held_reason: Why it was held last.
        state: Name of its final Prefect state.
    """

    name: str
    active_fraction: float | None
    active_fraction_interval: tuple[float, float] | None
    peak_memory_mib: int | None
    partner: str | None
    predicted_slowdown: float | None
    measured_slowdown: float | None
    jct_s: float | None
    held_s: float | None
    held_reason: str | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueResult:
    """What became of a queue.

    Attributes:
        trainings: In the order of the queue.
        average_jct_s: Mean job completion time; None unless all have completed, since one
            that fails at once would flatter it.
        makespan_s: From the first submission to the last end; None while one has not ended.
    """

    trainings: tuple[TrainingResult, ...]
    average_jct_s: float | None
    makespan_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "trainings": [asdict(training) for training in self.trainings],
            "average_jct_s": self.average_jct_s,
            "makespan_s": self.makespan_s,
        }


def result_of(
    views: Iterable[TrainingView], profiles: Mapping[tuple[str, str], Profile]
) -> QueueResult:
    """Work out the result.

    Args:
        views: Every training after its end.
        profiles: Known profiles by key and device model.
    """
    views = tuple(views)
    names = {view.run_id: view.name for view in views}
    trainings = tuple(_training_result(view, profiles, names) for view in views)
    times = [training.jct_s for training in trainings if training.jct_s is not None]
    ends = [view.ended_at_s for view in views if view.ended_at_s is not None]
    return QueueResult(
        trainings=trainings,
        average_jct_s=fmean(times) if times and len(times) == len(views) else None,
        makespan_s=max(ends) - min(view.submitted_at_s for view in views)
        if ends and len(ends) == len(views)
        else None,
    )


def _training_result(
    view: TrainingView, profiles: Mapping[tuple[str, str], Profile], names: Mapping[str, str]
) -> TrainingResult:
    profile = profiles.get((view.profile_key or "", view.device_model or ""))
    shared = _main_window(view.co_runs)
    partner = None
    if shared is not None:
        partner = " + ".join(names.get(run_id, run_id[:8]) for run_id in shared.partners)
    predicted, measured = _slowdowns(view.co_runs, shared, profile)
    peak = view.peak_memory_mib or (profile.peak_memory_mib if profile else None)
    return TrainingResult(
        name=view.name,
        active_fraction=profile.active_fraction if profile else None,
        active_fraction_interval=profile.active_fraction_interval if profile else None,
        peak_memory_mib=peak,
        partner=partner,
        predicted_slowdown=predicted,
        measured_slowdown=measured,
        jct_s=_difference(view.ended_at_s, view.submitted_at_s) if view.completed else None,
        held_s=_difference(view.released_at_s, view.submitted_at_s),
        held_reason=view.held_reason,
        state=view.state,
    )


def _main_window(co_runs: Iterable[CoRun]) -> CoRun | None:
    """Return the window beside the partner of most steps; None where it shared no step."""
    shared = [window for window in co_runs if window.partners and window.steps]
    return max(shared, key=lambda window: (window.steps, window.partners), default=None)


def _slowdowns(
    co_runs: tuple[CoRun, ...], shared: CoRun | None, profile: Profile | None
) -> tuple[float | None, float | None]:
    """Return (predicted, measured) slowdown beside the main partner.

    One that shared no step is predicted not to be slowed down, and measured against its kind's
    step time alone: how far that is from 1 shows the noise in all of these figures.
    """
    if shared is not None:
        return shared.predicted_slowdown, measured_slowdown(shared, _solo_seconds(co_runs, profile))
    own = solo_step_seconds(co_runs)
    known = profile.step_seconds if profile else None
    if own is None or known is None:
        return None, None
    return 1.0, own[0] / known


def _solo_seconds(co_runs: tuple[CoRun, ...], profile: Profile | None) -> float | None:
    """Return the step time alone that rests on more steps: its own, or that of its kind."""
    own = solo_step_seconds(co_runs)
    if own is not None and (profile is None or own[1] >= profile.steps):
        return own[0]
    known = profile.step_seconds if profile else None
    return own[0] if known is None and own is not None else known


def _difference(later: float | None, earlier: float) -> float | None:
    return None if later is None else max(0.0, later - earlier)


def table_of(result: QueueResult, title: str) -> Table:
    """Return the result as a table for people, narrow enough for 80 columns."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.pad_edge = False
    for heading in ("training", "active", "peak\nMiB", "partner"):
        left = heading in {"training", "partner"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for heading in ("slowdown\npredicted", "\nmeasured", "held", "JCT"):
        table.add_column(heading, justify="right", no_wrap=True)
    for training in result.trainings:
        cells = [
            training.name,
            output.measured_percent(training.active_fraction, training.active_fraction_interval),
            None if training.peak_memory_mib is None else str(training.peak_memory_mib),
            training.partner,
            _factor(training.predicted_slowdown),
            _factor(training.measured_slowdown),
            _whole_seconds(training.held_s),
            training.state if training.jct_s is None else _whole_seconds(training.jct_s),
        ]
        table.add_row(*(Text(output.UNKNOWN if cell is None else cell) for cell in cells))
    return table


def sentences_about(result: QueueResult) -> list[str]:
    """Return what the table does not say: averages, and why the longest held were held."""
    average = output.duration(result.average_jct_s)
    ended_well = sum(training.state == "Completed" for training in result.trainings)
    sentences = [
        f"Average JCT {average} over {len(result.trainings)} trainings, makespan "
        f"{output.duration(result.makespan_s)}."
        if average
        else f"{ended_well} of {len(result.trainings)} trainings have completed, so there is no "
        "average JCT."
    ]
    held = [each for each in result.trainings if each.held_reason and each.held_s is not None]
    held.sort(key=lambda each: (-(each.held_s or 0.0), each.name))
    sentences += [
        f"{each.name} was held {output.duration(each.held_s)}, last because: {each.held_reason}"
        for each in held[:_EXPLAINED]
    ]
    if any(training.partner for training in result.trainings):
        sentences.append(
            "Slowdowns are step time beside the partner / step time alone (without a partner: own "
            f"step time / that of its kind); measured ones rest on at least {LEAST_STEPS} steps of "
            "both, and '-' is unknown. The partner is the one beside which a training took most of "
            "its steps; it may have taken most of its own elsewhere."
        )
    if any(output.is_uncertain(each.active_fraction_interval) for each in result.trainings):
        sentences.append(
            f"'~' marks an active fraction that may be off by more than {output.UNCERTAIN_BY:.0%}: "
            "others took the processor while it was measured, or its steps differ much."
        )
    return sentences


def _factor(slowdown: float | None) -> str | None:
    return None if slowdown is None else f"{slowdown:.2f}"


def _whole_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.0f} s"
