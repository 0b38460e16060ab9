"""From files and options to a world, its queues, and what must be said about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from random import Random

from xonar_prefect.cli.simulate.notes import notes_on, notes_on_pairs, unread_in
from xonar_prefect.cli.simulate.options import GpuGroup, Options, parse_gpus
from xonar_prefect.cli.simulate.recorded import Startup, measured_startup
from xonar_prefect.core.models import Device, Limits
from xonar_prefect.core.simulation import Learnt, MeasuredPairs, Submission, World
from xonar_prefect.core.simulation.assembly import (
    Profiles,
    assemble,
    gpus,
    with_requests,
)
from xonar_prefect.devices.cpu import is_core_model
from xonar_prefect.errors import WrongUsageError
from xonar_prefect.files.colocation import Colocations, read_colocations
from xonar_prefect.files.profiles import read_profiles
from xonar_prefect.files.traces import read_trace

MEDIAN_SECONDS = 600.0
SIGMA = 1.0
QUEUE_SIZE = 10
REPEAT = 50
_CORE_STARTUP = 1.0
"""On a processor core, starting up uses the device all the time: it imports and compiles there."""

Queues = Mapping[str, tuple[Submission, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What will be simulated.

    Attributes:
        world: The world.
        queues: Queues by name, each simulated on its own.
        measured: Tells which pairs were measured together.
        notes: What the figures rest on, in sentences.
        learnt: What is known beforehand of how trainings get along.
    """

    world: World
    queues: Queues
    measured: MeasuredPairs
    notes: tuple[str, ...]
    learnt: Learnt = field(default_factory=Learnt)

    def with_notes(self, *more: str) -> Scenario:
        """Return it with more to say."""
        return replace(self, notes=(*more, *self.notes))


def from_files(options: Options) -> Scenario:
    """Build the scenario that files and options describe.

    Raises:
        FileError: A file cannot be used.
        WrongUsageError: Options contradict the files or each other.
    """
    if options.profiles is None:
        raise WrongUsageError("--profiles is missing.")
    profiles = read_profiles(options.profiles)
    colocations = (
        Colocations()
        if options.colocation is None
        else read_colocations(options.colocation, profiles)
    )
    groups = [parse_gpus(text) for text in options.gpus] or [GpuGroup(1)]
    devices = devices_of(groups, profiles, options.gpus_per_host)
    queues = _queues(options, profiles, {device.model for device in devices})
    limits = limits_of(options, default_max_wait=math.inf)
    startup = (
        measured_startup({device.model for device in devices})
        if options.startup is None
        else Startup(options.startup)
    )
    scenario = scenario_of(
        profiles,
        colocations,
        devices,
        queues,
        options,
        limits,
        startup_seconds=startup.seconds,
    )
    return scenario.with_notes(
        *unread_in(options),
        *notes_on_pairs(options, scenario.world, colocations),
        *([] if startup.note is None else [startup.note]),
    )


def scenario_of(
    profiles: Profiles,
    colocations: Colocations,
    devices: Iterable[Device],
    queues: Queues,
    options: Options,
    limits: Limits,
    *,
    startup_seconds: float,
) -> Scenario:
    """Put a world together, and say what its figures rest on."""
    devices = tuple(devices)
    on_cores = all(is_core_model(device.model) for device in devices)
    assembled = assemble(
        profiles,
        devices,
        throughputs=colocations.throughputs,
        clashes=colocations.clashes,
        startup_active_fraction=_CORE_STARTUP if on_cores else 0.0,
    )
    world = replace(
        assembled,
        limits=limits,
        startup_seconds=startup_seconds,
        profiled=options.profiled == "all",
        durations_known=options.remaining == "known",
    )
    kinds = {each.kind for queue in queues.values() for each in queue}
    return Scenario(
        world=world,
        queues={name: with_requests(world, queue) for name, queue in queues.items()},
        measured=MeasuredPairs(throughputs=colocations.throughputs, otherwise=world.truth),
        notes=tuple(notes_on(options, world, sorted(kinds))),
    )


def limits_of(options: Options, *, default_max_wait: float | None = None) -> Limits:
    """Return the rules: those of the settings, but for what the options say.

    Args:
        options: The options.
        default_max_wait: Bound where the options say none; None for that of the settings.
    """
    from xonar_prefect.settings import load_settings

    limits = load_settings(max_trainings_per_gpu=options.trainings_per_gpu).limits()
    max_wait = default_max_wait if options.max_wait is None else options.max_wait
    return limits if max_wait is None else replace(limits, max_wait_seconds=max_wait)


def devices_of(
    groups: Iterable[GpuGroup], profiles: Profiles, per_host: int | None
) -> tuple[Device, ...]:
    """Return the devices of these groups.

    Raises:
        WrongUsageError: A model is not said though the profiles know several, or they do not
            know the one that is.
    """
    known = sorted({model for by_model in profiles.values() for model in by_model})
    devices: tuple[Device, ...] = ()
    for group in groups:
        if group.model is None and len(known) != 1:
            raise WrongUsageError(
                f"The profiles are of several GPU models ({', '.join(known)}); say which one with "
                f"--gpus {group.count}:MODEL."
            )
        model = group.model or known[0]
        if model not in known:
            raise WrongUsageError(
                f"No profile is of the GPU model {model!r}; the profiles are of {', '.join(known)}."
            )
        devices += gpus(group.count, model, group.memory_mib, first=len(devices), per_host=per_host)
    return devices


def _queues(options: Options, profiles: Profiles, models: set[str]) -> Queues:
    dice = Random(options.seed)  # noqa: S311 - a repeatable draw, not a secret
    pattern = options.draw_from or "*"
    drawn_from = sorted(
        kind
        for kind, by_model in profiles.items()
        if fnmatchcase(kind, pattern) and not models.isdisjoint(by_model)
    )
    if not drawn_from:
        raise WrongUsageError(
            f"No training with a profile on {', '.join(sorted(models))} is named like {pattern!r}; "
            "correct --draw-from."
        )
    if options.trace is not None:
        draw = None if options.draw_from is None else lambda: dice.choice(drawn_from)
        read = read_trace(options.trace, profiles, draw)
        return {name: tuple(queue) for name, queue in read.items()}
    digits = len(str((options.repeat or REPEAT) - 1))
    return {
        f"q{number:0{digits}d}": _sampled(options, dice, drawn_from)
        for number in range(options.repeat or REPEAT)
    }


def _sampled(options: Options, dice: Random, kinds: list[str]) -> tuple[Submission, ...]:
    queue = []
    for position in range(options.queue_size or QUEUE_SIZE):
        kind = dice.choice(kinds)
        seconds = MEDIAN_SECONDS
        if options.durations == "lognormal":
            seconds = dice.lognormvariate(math.log(MEDIAN_SECONDS), SIGMA)
        queue.append(
            Submission(
                name=f"{kind} #{position + 1}", kind=kind, submitted_at_s=0.0, solo_seconds=seconds
            )
        )
    return tuple(queue)
