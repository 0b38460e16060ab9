"""The values that decisions are made of: what is known of trainings, devices and limits.

All of them are frozen and checked on construction, so an instance that exists is valid.
Missing is `None`: an unknown memory peak or step time is never zero. Memory is in whole MiB,
time in seconds; times of day are seconds since the epoch, passed in by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from xonar_prefect.core.hosts import Host
from xonar_prefect.core.traits import Traits
from xonar_prefect.errors import InvalidValueError

if TYPE_CHECKING:
    from xonar_prefect.core.interference import InterferenceModel


def _check_fraction(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise InvalidValueError(name, value, "a fraction from 0 to 1")


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InvalidValueError(name, value, "greater than zero; unknown is None")


def _check_not_negative(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise InvalidValueError(name, value, "zero or greater")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a training step costs on one device model.

    Attributes:
        key: Digest of what shapes the work (`core.identity.profile_key`).
        device_model: The device model it was measured on; one key has one profile per model.
        active_fraction: Share of the step in which the device computes, 0 to 1.
        communication_fraction: Share spent in communication that no computation hides.
        input_fraction: Share spent waiting for input.
        other_fraction: The rest of the idle share.
        step_seconds: Time of one step *alone* on the device; unknown for a joint profile
            until there was a window alone.
        step_seconds_interval: Its 95 % interval (low, high).
        active_fraction_interval: The 95 % interval of the active fraction (low, high).
        peak_memory_mib: Peak memory of the training's process tree on the device.
        memory_source: Where the peak comes from (`"rss"`, `"nvml"`, `"allocator"`, ...).
        held_memory_mib: What its processes were last seen to hold on the device at most; more than
            the peak where a framework takes memory that it does not use.
        peak_host_memory_mib: Peak main memory of its process tree, without shared libraries.
        steps: Number of steps the figures rest on.
        source: What measured the active time (`"tensorflow"`, `"cpu-time"`, ...).
        framework: Framework and version, as text.
        device: Id of the device it was measured on.
        joint: Measured beside a partner.
        code_version: Version of the flow's code that was measured.
        measured_at_s: When the measurement ended, seconds since the epoch.
    """

    key: str
    device_model: str
    active_fraction: float | None = None
    communication_fraction: float | None = None
    input_fraction: float | None = None
    other_fraction: float | None = None
    step_seconds: float | None = None
    step_seconds_interval: tuple[float, float] | None = None
    active_fraction_interval: tuple[float, float] | None = None
    peak_memory_mib: int | None = None
    memory_source: str | None = None
    held_memory_mib: int | None = None
    peak_host_memory_mib: int | None = None
    steps: int = 0
    source: str | None = None
    framework: str | None = None
    device: str | None = None
    joint: bool = False
    code_version: str | None = None
    measured_at_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "active_fraction",
            "communication_fraction",
            "input_fraction",
            "other_fraction",
        ):
            _check_fraction(name, getattr(self, name))
        _check_positive("step_seconds", self.step_seconds)
        for name in ("peak_memory_mib", "held_memory_mib", "peak_host_memory_mib"):
            _check_positive(name, getattr(self, name))
        _check_not_negative("steps", self.steps)

    def as_joint(self) -> Profile:
        """Return it as measured beside a partner: how it is alone is then unknown."""
        return replace(
            self,
            joint=True,
            active_fraction=None,
            active_fraction_interval=None,
            step_seconds=None,
            step_seconds_interval=None,
        )

    @property
    def active_seconds(self) -> float | None:
        """Active time per step."""
        if self.active_fraction is None or self.step_seconds is None:
            return None
        return self.active_fraction * self.step_seconds

    @property
    def active_to_idle_ratio(self) -> float | None:
        """The paper's r = active / idle; infinite for a training that is never idle."""
        if self.active_fraction is None:
            return None
        idle_fraction = 1.0 - self.active_fraction
        return math.inf if idle_fraction == 0.0 else self.active_fraction / idle_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One flow run of the pool, as the scheduler sees it.

    Attributes:
        run_id: Id of the flow run.
        name: Its name, for people.
        submitted_at_s: When it was submitted; order of the queue within a priority.
        gpus: Number of devices it needs at once; 0 bypasses the devices.
        priority: Priority of its work queue; 1 is the highest.
        queue: Name of its work queue.
        deployment: Id of its deployment, for the deployment's concurrency limit.
        memory_request_mib: Memory per device that its owner declared; None if not declared.
        exclusive: Never to share a device.
        memory_elastic: It takes what memory it finds, so its use says nothing about its need: it
            has a device to itself, or what its owner declared.
        host_memory_mib: Main memory of the host that its owner declared.
        cpu_threads: Threads that its owner wants to run at once; None where nobody said.
        shared_memory_mib: Shared memory (`/dev/shm`) that its owner declared.
        profile_key: Key of its kind; None when the recipe of its key is not known yet.
        profiles: Known profiles by device model.
        remaining_seconds: Time it needs alone on the fastest device model that it has a profile
            of; None when unknown.
        owner: Whose it is: owners share the devices evenly. None: its own and nobody else's.
        parameters: What shapes its work, as text, by name (`{"model": "bert", "batch_size": "8"}`);
            kinds with the same but for their numbers are expected to behave alike.
        parent: Id of the run that has started it and may wait for it; None for none.
    """

    run_id: str
    name: str
    submitted_at_s: float
    gpus: int = 1
    priority: int = 1
    queue: str = "default"
    deployment: str | None = None
    memory_request_mib: int | None = None
    exclusive: bool = False
    memory_elastic: bool = False
    host_memory_mib: int | None = None
    cpu_threads: int | None = None
    shared_memory_mib: int | None = None
    profile_key: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    remaining_seconds: float | None = None
    owner: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    _traits: Traits | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_not_negative("gpus", self.gpus)
        for name in ("memory_request_mib", "host_memory_mib", "cpu_threads", "shared_memory_mib"):
            _check_positive(name, getattr(self, name))
        _check_not_negative("remaining_seconds", self.remaining_seconds)

    def profile_on(self, device_model: str) -> Profile | None:
        """Return the profile measured on this device model, if there is one."""
        return self.profiles.get(device_model)

    @property
    def traits(self) -> Traits:
        """What rules know it by; the same object for all that no rule tells apart."""
        traits = self._traits
        if traits is None:  # frozen, but this is no new value: worked out at first use
            traits = Traits.of(self)
            object.__setattr__(self, "_traits", traits)
        return traits

    @property
    def queue_position(self) -> tuple[int, float, str]:
        """Sort key of the queue: priority, then submission, then the id as tie-break."""
        return (self.priority, self.submitted_at_s, self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A training that holds a slot of a device: reserved, running or draining.

    Attributes:
        training: The training.
        devices: Ids of all devices it holds (more than one for a gang).
        request_mib: Memory reserved for it on each of them; None means unknown, and then it
            has the whole device to itself.
        used_mib: What it was last seen to use there; 0 while it starts or where usage cannot
            be attributed to it (then the request counts).
        started_at_s: When it was released.
        remaining_seconds: Time it will still need alone on its devices; None when unknown.
    """

    training: Training
    devices: tuple[str, ...]
    request_mib: int | None = None
    used_mib: int = 0
    started_at_s: float = 0.0
    remaining_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_positive("request_mib", self.request_mib)
        _check_not_negative("used_mib", self.used_mib)
        _check_not_negative("remaining_seconds", self.remaining_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator and what is on it at the moment of the snapshot.

    Attributes:
        id: UUID of a GPU or MIG slice; `cpu-N` for a processor core.
        index: Position for display and for breaking ties.
        model: Device model, the key of profiles.
        memory_mib: Total memory; 0 only for an unavailable device that never could be read.
        reserved_mib: Kept by the driver, never usable.
        used_mib: In use by anybody at the moment, without `reserved_mib`.
        residents: Our trainings on it.
        host: Host it is in; None where all are in the same.
        unavailable: Why nothing may be released to it (lost, draining, quarantined), if so.
    """

    id: str
    index: int
    model: str
    memory_mib: int
    reserved_mib: int = 0
    used_mib: int = 0
    residents: tuple[Resident, ...] = ()
    unavailable: str | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        if self.unavailable is None:
            _check_positive("memory_mib", self.memory_mib)
        _check_not_negative("memory_mib", self.memory_mib)
        _check_not_negative("reserved_mib", self.reserved_mib)
        _check_not_negative("used_mib", self.used_mib)

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU; CUDA shows a process only the first of several."""
        return self.id.startswith("MIG-")

    @property
    def label(self) -> str:
        """Its name for people.

        >>> Device(id="GPU-5f3c", index=1, model="V100", memory_mib=32768).label
        'GPU 1'
        >>> Device(id="cpu-3", index=0, model="Xeon", memory_mib=4096).label
        'CPU core 3'
        """
        if self.id.startswith("cpu-"):
            return f"CPU core {self.id.removeprefix('cpu-')}"
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured co-run: what a training's step cost beside these partners.

    Attributes:
        device_model: Where it was measured.
        profile_key: The training that was slowed down.
        partner_keys: Its partners, sorted.
        slowdown: Step time together / step time alone.
        steps: Steps that the figure rests on.
        observed_at_s: When the window ended.
    """

    device_model: str
    profile_key: str
    partner_keys: tuple[str, ...]
    slowdown: float
    steps: int
    observed_at_s: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("slowdown", self.slowdown)
        _check_positive("steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The rules a decision must keep, from settings and from Prefect.

    Attributes:
        max_trainings_per_gpu: Trainings that may share a device.
        headroom_mib: Memory of each device that is never given away, at least.
        headroom_ratio: The same as a share of the device; the larger of the two counts.
        margin_ratio: Added to a measured peak, as a share of it.
        margin_mib: The least that is added to a measured peak.
        max_wait_seconds: Age from which no later training may take the place of a held one;
            infinite for no bound.
        free_slots: Trainings that the pool's limit still admits; None for no limit.
        free_worker_slots: Trainings that the worker's `--limit` still admits.
        free_slots_by_queue: The same for queues that have a limit.
        free_slots_by_deployment: The same for deployments that have a limit.
        free_slots_without_device: Runs with `gpus: 0` that may still start.
        free_starts: Trainings that may start now beside those that are starting; None for no limit.
        pool_paused: Nothing may be released.
        paused_queues: Queues that release nothing.
        observe_only: Decide and explain, share nothing: every device takes one training.
    """

    max_trainings_per_gpu: int = 2
    headroom_mib: int = 0
    headroom_ratio: float = 0.0
    margin_ratio: float = 0.10
    margin_mib: int = 64
    max_wait_seconds: float = 86400.0
    free_slots: int | None = None
    free_worker_slots: int | None = None
    free_slots_by_queue: Mapping[str, int] = field(default_factory=dict)
    free_slots_by_deployment: Mapping[str, int] = field(default_factory=dict)
    free_slots_without_device: int | None = None
    free_starts: int | None = None
    pool_paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    observe_only: bool = False

    def __post_init__(self) -> None:
        _check_positive("max_trainings_per_gpu", self.max_trainings_per_gpu)
        _check_fraction("headroom_ratio", self.headroom_ratio)
        for name in ("headroom_mib", "margin_ratio", "margin_mib"):
            _check_not_negative(name, getattr(self, name))
        if not self.max_wait_seconds >= 0:  # also refuses what is not a number
            raise InvalidValueError("max_wait_seconds", self.max_wait_seconds, "zero or greater")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a policy may know at one moment.

    Attributes:
        now_s: The time, seconds since the epoch.
        held: Trainings that wait, in any order (`Training.queue_position` orders them).
        devices: The devices with their residents.
        observations: Measured co-runs, from which the interference model corrects its prior.
        limits: The rules to keep.
        host: The host around the devices.
        profiles: Profiles of kinds that occur in the observations but neither wait nor run now;
            with them, what was observed of the absent teaches the device model's sharing cost.
        durations: Mean time alone of finished trainings, by profile key and device model.
        clashes: Pairs that ran out of memory together though their requests fit: device model and
            the two profile keys, sorted. They are not put together again.
        interference: The model built from these observations, where the caller keeps it between
            decisions; None to have it built.
        startup_seconds: From a release to the first step: how much longer than its training a run
            has its devices; 0 where the durations are from launch to end, as a worker's are.
        explained: Whether anybody reads why. If not, there are neither decisions to hold nor
            alternatives: a simulation does without.
    """

    now_s: float
    held: tuple[Training, ...]
    devices: tuple[Device, ...]
    observations: tuple[Observation, ...] = ()
    limits: Limits = field(default_factory=Limits)
    host: Host = field(default_factory=Host)
    profiles: tuple[Profile, ...] = ()
    durations: Mapping[tuple[str, str], float] = field(default_factory=dict)
    clashes: frozenset[tuple[str, str, str]] = frozenset()
    interference: InterferenceModel | None = None
    startup_seconds: float = 0.0
    explained: bool = True
