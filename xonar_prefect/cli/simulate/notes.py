"""What the figures of a simulation rest on, in sentences."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from xonar_prefect.cli.simulate.options import Options
from xonar_prefect.core.simulation import World
from xonar_prefect.core.simulation.assembly import of_unknown_memory
from xonar_prefect.files import colocation, profiles, traces
from xonar_prefect.files.colocation import Colocations
from xonar_prefect.files.headers import unread_columns

_NAMED = 3


def notes_on(options: Options, world: World, kinds: Sequence[str]) -> Iterable[str]:
    """Return the sentences.

    Args:
        options: The options.
        world: What is simulated.
        kinds: Kinds of the trainings.
    """
    yield from _gpu_memory_notes(options, world)
    yield from _training_memory_notes(options, world, kinds)
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


def notes_on_pairs(options: Options, world: World, pairs: Colocations) -> Iterable[str]:
    """Say which rows of the measured pairs change nothing, and which say of a gain."""
    if options.colocation is None:
        return
    name, rows = options.colocation.name, pairs.rows.total()
    models = {device.model for device in world.devices}
    empty = sum(pairs.empty[model] for model in models)
    elsewhere = {model: count for model, count in pairs.rows.items() if model not in models}
    if idle := empty + sum(elsewhere.values()):
        why = [f"{empty} without figures"] if empty else []
        if elsewhere:
            why.append(
                f"{sum(elsewhere.values())} of a GPU model that is not simulated "
                f"({_named(sorted(elsewhere))})"
            )
        yield f"Rows of {name} without effect: {idle} of {rows}, {' and '.join(why)}."
    if faster := sum(pairs.faster[model] for model in models):
        yield (
            f"Taken as measured, though a training beside another is faster than alone there: "
            f"{faster} of {rows} rows of {name}, with a normalised throughput above 1."
        )


def _gpu_memory_notes(options: Options, world: World) -> Iterator[str]:
    """Say of which GPUs the memory is unknown, and what to give."""
    outcome = _outcome(options, "all trainings are taken to fit together")
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


def _training_memory_notes(options: Options, world: World, kinds: Sequence[str]) -> Iterator[str]:
    """Say of which kinds the memory peak is unknown, or all, and what to give."""
    outcome = _outcome(options, "these are taken to fit beside every other")
    from_files = options.from_pool is None
    import_it = "with `xonar profiles import`"
    models = tuple(dict.fromkeys(device.model for device in world.devices))
    for model in models:
        if absent := [kind for kind in kinds if model not in world.profiles.get(kind, {})]:
            where = f"in a row of {model}" if from_files else f"by profiling them, or {import_it}"
            yield (
                f"There is no profile on {model} of {len(absent)} of {len(kinds)} kinds "
                f"({_named(absent)}): {outcome}. Give it {where}."
            )
    lacking = [
        kind
        for kind in kinds
        if any(
            model in world.profiles.get(kind, {}) and not world.peak_memory_mib(kind, model)
            for model in models
        )
    ]
    if lacking:
        where = (
            "in the column peak_memory_mib" if from_files else f"by profiling them, or {import_it}"
        )
        yield (
            f"The memory peak is unknown of {len(lacking)} of {len(kinds)} kinds "
            f"({_named(lacking)}): {outcome}. Give it {where}."
        )


def _outcome(options: Options, otherwise: str) -> str:
    if options.colocation is None:
        return otherwise
    return "pairs run out of memory where the column out_of_memory says so"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _quoted(count: int, model: str, memory: object) -> str:
    return shlex.quote(f"{count}:{model}:{memory}")
