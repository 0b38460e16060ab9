"""What the figures of a simulation rest on, in sentences."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from xonar_prefect.cli.simulate.options import Options
from xonar_prefect.core.simulation import World
from xonar_prefect.core.simulation.assembly import of_unknown_memory
from xonar_prefect.files import colocation, profiles, traces
from xonar_prefect.files.headers import unread_columns

_NAMED = 3


def notes_on(options: Options, world: World, lacking: Sequence[str], kinds: int) -> Iterable[str]:
    """Return the sentences.

    Args:
        options: The options.
        world: What is simulated.
        lacking: Kinds whose memory peak is unknown.
        kinds: Number of all kinds.
    """
    yield from _memory_notes(options, world, lacking, kinds)
    if options.from_pool is None and not world.startup_seconds:
        yield "No time is counted for starting a training up; --startup SECONDS does."
    if math.isinf(world.limits.max_wait_seconds):
        yield "No training is preferred for having waited long; --max-wait SECONDS does that."


def unread_in(options: Options) -> Iterable[str]:
    """Name the columns of the files that are not read."""
    files = (
        (options.profiles, (*profiles.COLUMNS, *profiles.OPTIONAL_COLUMNS)),
        (options.colocation, colocation.COLUMNS),
        (options.trace, (*traces.COLUMNS, *traces.OPTIONAL_COLUMNS)),
    )
    for path, known in files:
        if path is not None and (note := unread_columns(path, known)) is not None:
            yield note


def _memory_notes(
    options: Options, world: World, lacking: Sequence[str], kinds: int
) -> Iterable[str]:
    """Say whose memory is unknown, the GPUs' or the trainings', and what to give."""
    outcome = (
        "pairs run out of memory where the column out_of_memory says so"
        if options.colocation is not None
        else "all trainings are taken to fit together"
    )
    if unsized := Counter(device.model for device in of_unknown_memory(world.devices)):
        # With this option the devices are those that it names: all models must be named.
        models = Counter(device.model for device in world.devices)
        sized = {device.model: device.memory_mib for device in world.devices}
        given = " ".join(
            f"--gpus {_quoted(count, model, 'MEMORY_MIB' if model in unsized else sized[model])}"
            for model, count in models.items()
        )
        yield (
            f"The memory of the GPUs is unknown: {outcome}. Give it with {given}, as `xonar gpus` "
            "shows it on their host."
        )
    if lacking:
        names = ", ".join(lacking[:_NAMED]) + (", ..." if len(lacking) > _NAMED else "")
        where = (
            "in the column peak_memory_mib"
            if options.from_pool is None
            else "by profiling them, or with `xonar profiles import`"
        )
        yield (
            f"The memory peak is unknown of {len(lacking)} of {kinds} kinds ({names}): {outcome}. "
            f"Give it {where}."
        )


def _quoted(count: int, model: str, memory: object) -> str:
    return shlex.quote(f"{count}:{model}:{memory}")
