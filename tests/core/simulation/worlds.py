"""Short ways to build simulated worlds in tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tests.core.building import MODEL, device
from xonar_prefect.core.models import (
    Device,
    Limits,
    Profile,
)
from xonar_prefect.core.policies import policy_named
from xonar_prefect.core.simulation import ProcessorSharing, Run, Submission, World, simulate


def submission(
    name: str, seconds: float, at: float = 0.0, *, kind: str | None = None, **values: Any
) -> Submission:
    return Submission(
        name=name, kind=kind or name, submitted_at_s=at, solo_seconds=seconds, **values
    )


def profiles(
    fractions: Mapping[str, float | None], *, step: float | None = 0.1, peak: int | None = 1000
) -> dict[str, dict[str, Profile]]:
    """Build a profile on the model V100 for each kind."""
    return {
        kind: {
            MODEL: Profile(
                key=kind,
                device_model=MODEL,
                active_fraction=fraction,
                step_seconds=step,
                peak_memory_mib=peak,
            )
        }
        for kind, fraction in fractions.items()
    }


def world(
    fractions: Mapping[str, float | None],
    *,
    devices: int | Sequence[Device] = 1,
    step: float | None = 0.1,
    peak: int | None = 1000,
    limits: Limits | None = None,
    **values: Any,
) -> World:
    """Build devices of model V100 on which trainings share the processor, without any cost."""
    if isinstance(devices, int):
        devices = [device(index) for index in range(devices)]
    known = {kind: value for kind, value in fractions.items() if value is not None}
    return World(
        **{
            "devices": tuple(devices),
            "profiles": profiles(fractions, step=step, peak=peak),
            "truth": ProcessorSharing(
                active_fractions={(MODEL, kind): value for kind, value in known.items()}
            ),
            "reference_models": (MODEL,),
            # nobody is overdue, so the policy's own rule decides alone
            "limits": limits or Limits(max_wait_seconds=math.inf),
            **values,
        }
    )


def run(where: World, *submissions: Submission, policy: str = "parallel", **values: Any) -> Run:
    return simulate(where, submissions, policy_named(policy), **values)


def finished(result: Run) -> dict[str, float]:
    return {each.submission.name: each.finished_at_s for each in result.outcomes}


def started(result: Run) -> dict[str, float]:
    return {each.submission.name: each.started_at_s for each in result.outcomes}
