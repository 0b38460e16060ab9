"""Drives the measuring of one training, from a thread beside it, to a profile.

The times of a step are taken first, undisturbed; a trace of further steps tells what only a trace
can tell: on a GPU the active time, on a processor core why the rest was idle. There the active
time is the processor time of the process tree, since communication burns it too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.contention import (
    UNDISTURBED,
    difference,
    displaced_fraction,
    undisturbed_fraction,
)
from xonar_prefect.profiling.estimate import Estimate, Estimator
from xonar_prefect.profiling.framework import Tracer
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window

_INFORMATIVE_STEPS = 10
_INFORMATIVE_SECONDS = 2.0
# A trace waits so long, and so many times what its steps should take, and no longer: in a long
# validation no step comes, a partner waits for the profile, and the trace would grow.
_PATIENCE_SECONDS = 2.0
_PATIENCE_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of the step, of its wall time; they add up to 1."""

    active: float
    communication: float
    input: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was found out about a training's steps.

    Attributes:
        estimate: Step time and active fraction; None when no step was measured.
        split: Why it was idle, by the trace; None without a trace.
        source: What measured the active time; None when unknown.
        displaced: Share of the time in which others had the processor cores it wanted, of which
            the estimate knows nothing; None when unknown, as on a GPU.
        framework: What child processes trained with; None where the steps are those of this one.
        started_at_s: When the measured steps began, seconds since the epoch.
        ended_at_s: When they ended.
    """

    estimate: Estimate | None = None
    split: Split | None = None
    source: str | None = None
    displaced: float | None = None
    framework: str | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None

    @property
    def is_undisturbed(self) -> bool:
        """Whether nobody else was seen to take much of the cores; on a GPU nobody ever is."""
        return (self.displaced or 0.0) <= UNDISTURBED

    @property
    def active_fraction(self) -> float | None:
        """Active share of the step, had nobody else taken the cores; None when unknown."""
        active = self.estimate.active_fraction if self.estimate else None
        return None if active is None else undisturbed_fraction(active, self.displaced or 0.0)

    @property
    def active_fraction_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval; None when unknown.

        Where others took a core, it reaches from the share of the time as it passed, which is true
        if all that was waited for came meanwhile, to the share of what they left, if nothing did.
        """
        interval = self.estimate.active_fraction_interval if self.estimate else None
        if interval is None:
            return None
        return interval[0], min(1.0, interval[1] / (1.0 - (self.displaced or 0.0)))


def measure_on_processor(
    session: Session,
    tracer: Tracer,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> Measurement:
    """Wait until the steps are measured by processor time; then trace a few for information.

    Args:
        session: The steps.
        tracer: Tells why the training was idle.
        patience_seconds: How long to wait for the steps of a trace beyond what they should take.
    """
    session.measured.wait()
    estimate = session.estimate
    if estimate is None or session.measured_from_to_s is None:
        return Measurement()
    steps = max(2, min(_INFORMATIVE_STEPS, int(_INFORMATIVE_SECONDS / estimate.step_seconds)))
    started_at_s, ended_at_s = session.measured_from_to_s
    displaced = None
    if session.accounts is not None:
        displaced = displaced_fraction(difference(*session.accounts), session.accounts[0].cores)
    return Measurement(
        estimate=estimate,
        split=_split(_trace(session, tracer, steps, patience_seconds + _expected(steps, estimate))),
        source="cpu-time",
        displaced=displaced,
        started_at_s=started_at_s,
        ended_at_s=ended_at_s,
    )


def measure_on_gpu(
    session: Session,
    tracer: Tracer,
    window: Window,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> Measurement:
    """Wait until the step time is measured, then trace until the active fraction has settled.

    The traces grow from one to the next, since only a finished trace can be read.
    """
    session.measured.wait()
    timed = session.estimate
    if timed is None or session.measured_from_to_s is None:
        return Measurement()
    traced = Estimator()
    steps: list[StepTimes] = []
    size = window.minimum
    while not traced.settled(window):
        wanted = min(size, window.maximum - traced.steps)
        chunk = _trace(session, tracer, wanted, patience_seconds + _expected(wanted, timed))
        if not chunk:
            break
        for step in chunk:
            traced.add(step.wall_seconds, step.active_seconds)
        steps.extend(chunk)
        size *= 2
    active = traced.estimate()
    return Measurement(
        estimate=Estimate(
            steps=timed.steps,
            step_seconds=timed.step_seconds,
            step_seconds_interval=timed.step_seconds_interval,
            active_fraction=active.active_fraction if active else None,
            active_fraction_interval=active.active_fraction_interval if active else None,
        ),
        split=_split(steps),
        source=tracer.source if active else None,
        started_at_s=session.measured_from_to_s[0],
        ended_at_s=time.time() if active else session.measured_from_to_s[1],
    )


def _expected(steps: int, estimate: Estimate) -> float:
    return _PATIENCE_FACTOR * steps * estimate.step_seconds


def _trace(
    session: Session, tracer: Tracer, steps: int, at_most_seconds: float
) -> Sequence[StepTimes]:
    if session.finished:
        return ()
    annotate = tracer.start()
    if annotate is None:
        return ()
    try:
        session.trace(steps, annotate).wait(at_most_seconds)
    finally:
        session.stop_tracing()
        read = tracer.stop()
    return read


def _split(steps: Sequence[StepTimes]) -> Split | None:
    wall = sum(step.wall_seconds for step in steps)
    if wall <= 0:
        return None
    active = sum(step.active_seconds for step in steps) / wall
    communication = sum(step.communication_seconds for step in steps) / wall
    waiting = sum(step.input_seconds for step in steps) / wall
    return Split(
        active=active,
        communication=communication,
        input=waiting,
        other=max(0.0, 1.0 - active - communication - waiting),
    )


def idle_shares(active_fraction: float, split: Split) -> tuple[float, float, float]:
    """Return communication, input and other as shares of the step that fill its idle time.

    On a processor core the trace and the processor time disagree about what is active:
    communication burns processor time, and is then no idle time. What the trace saw of waiting
    counts as far as there was idle time for it.
    """
    idle = 1.0 - active_fraction
    waiting = split.communication + split.input
    scale = 1.0 if waiting <= idle else idle / waiting
    communication, waiting_for_input = split.communication * scale, split.input * scale
    return communication, waiting_for_input, max(0.0, idle - communication - waiting_for_input)
