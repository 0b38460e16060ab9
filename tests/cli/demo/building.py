"""Made-up trainings of a demonstration."""

from __future__ import annotations

from typing import Any

from xonar_prefect.cli.demo.report import QueueResult, TrainingResult
from xonar_prefect.cli.demo.watching import Stage, TrainingView
from xonar_prefect.core.ledger import CoRun
from xonar_prefect.core.models import Profile

MODEL = "CPU core (made up)"


def view(name: str, **changes: Any) -> TrainingView:
    """Return a training that has completed alone after a minute, and was never held."""
    values: dict[str, Any] = {
        "run_id": f"id-{name}",
        "name": name,
        "stage": Stage.ENDED,
        "state": "Completed",
        "completed": True,
        "submitted_at_s": 1000.0,
        "released_at_s": 1002.0,
        "ended_at_s": 1060.0,
        "settled": True,
        "device_model": MODEL,
        "profile_key": name.split("-")[0],
    }
    return TrainingView(**{**values, **changes})


def beside(*partners: str, steps: int = 100, step_seconds: float, **changes: Any) -> CoRun:
    return CoRun(
        partners=tuple(f"id-{name}" for name in partners),
        partner_keys=tuple(name.split("-")[0] for name in partners),
        steps=steps,
        seconds=steps * step_seconds,
        **changes,
    )


def profile(key: str, **changes: Any) -> dict[tuple[str, str], Profile]:
    return {(key, MODEL): Profile(key=key, device_model=MODEL, **changes)}


def result(average_jct_s: float | None, *names: str) -> QueueResult:
    trainings = tuple(
        TrainingResult(
            name=name,
            active_fraction=None,
            active_fraction_interval=None,
            peak_memory_mib=None,
            partner=None,
            predicted_slowdown=None,
            measured_slowdown=None,
            jct_s=average_jct_s,
            held_s=1.0,
            held_reason=None,
            state="Completed" if average_jct_s else "Crashed",
        )
        for name in names or ("cnn-1",)
    )
    return QueueResult(trainings=trainings, average_jct_s=average_jct_s, makespan_s=average_jct_s)
