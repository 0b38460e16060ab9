"""What is simulated: devices, trainings to come, what is true and what is known at first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from xonar_prefect.core.models import (
    Device,
    Limits,
    Observation,
    Profile,
)
from xonar_prefect.core.simulation.truth import Truth
from xonar_prefect.errors import InvalidValueError

MANY_DEVICES = 16
"""From here on, what is shown to the policy may be a little old, as it is in a worker."""
STARTING_UP = "(starting up)"
"""What a training's start-up counts as, where it uses the device: a kind with a law of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A training that will be submitted.

    Attributes:
        name: Its name, for people.
        kind: What it trains: the key of its profiles.
        submitted_at_s: When it is submitted, in seconds on the virtual clock.
        solo_seconds: How long it trains alone on the device model that the world
            refers to, without start-up.
        gpus: Number of devices it needs at once.
        priority: Priority of its work queue; 1 is the highest.
        memory_request_mib: Memory per device that its owner declared; None if not declared.
        owner: Whose it is; None: nobody else's.
        startup_seconds: From its release to its first step; None for that of the world.
    """

    name: str
    kind: str
    submitted_at_s: float
    solo_seconds: float
    gpus: int = 1
    priority: int = 1
    memory_request_mib: int | None = None
    owner: str | None = None
    startup_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("submitted_at_s", "solo_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidValueError(name, value, "zero or greater")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where trainings run, and what is true there.

    Attributes:
        devices: Empty devices.
        truth: How trainings really slow each other down.
        profiles: True profiles by kind, then device model. A kind may have none.
        reference_models: `Submission.solo_seconds` refers to the first of these device models on
            which the kind has a step time; elsewhere a training is faster by the ratio of step
            times, or as fast where one is unknown.
        clashes: Pairs known beforehand not to fit together (see `Snapshot`).
        limits: The rules to keep.
        startup_seconds: From a release to the first step, if nobody disturbs it.
        startup_uses_device: Whether a start-up uses the device, and the truth knows `STARTING_UP`,
            as on a processor core. Otherwise it takes a slot and memory, but disturbs nobody.
        profiled: Whether profiles are known beforehand. Otherwise that of a kind becomes known
            when the first training of it has made `profiling_steps` steps.
        profiling_steps: Steps until a profile has settled.
        durations_known: Whether the remaining time of every training is known. Otherwise a
            running one reports it after its start-up, and of a held one it is unknown.
    """

    devices: tuple[Device, ...]
    truth: Truth
    profiles: Mapping[str, Mapping[str, Profile]]
    reference_models: tuple[str, ...]
    clashes: frozenset[tuple[str, str, str]] = frozenset()
    limits: Limits = field(default_factory=Limits)
    startup_seconds: float = 0.0
    startup_uses_device: bool = False
    profiled: bool = True
    profiling_steps: int = 20
    durations_known: bool = True

    def step_seconds(self, kind: str, device_model: str) -> float | None:
        """Return the true step time alone; None when unknown."""
        profile = self.profiles.get(kind, {}).get(device_model)
        return None if profile is None else profile.step_seconds

    def reference_step_seconds(self, kind: str) -> float | None:
        """Return the true step time on the model that durations refer to; None when unknown."""
        steps = (self.step_seconds(kind, model) for model in self.reference_models)
        return next((step for step in steps if step is not None), None)

    def relative_seconds(self, kind: str, device_model: str) -> float:
        """Return how long one second of `Submission.solo_seconds` takes on this model."""
        here = self.step_seconds(kind, device_model)
        there = self.reference_step_seconds(kind)
        return 1.0 if here is None or there is None else here / there

    def peak_memory_mib(self, kind: str, device_model: str) -> int:
        """Return the true peak; 0 when unknown."""
        profile = self.profiles.get(kind, {}).get(device_model)
        return (profile and profile.peak_memory_mib) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What is known after a queue, for the next one.

    Attributes:
        observations: Measured co-runs, one for each combination.
        profiled: Kinds and device models with a known profile.
        durations: Sum of the times alone of finished trainings, and their number, by kind and
            device model.
        clashes: Pairs that ran out of memory.
    """

    observations: tuple[Observation, ...] = ()
    profiled: frozenset[tuple[str, str]] = frozenset()
    durations: Mapping[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    clashes: frozenset[tuple[str, str, str]] = frozenset()
