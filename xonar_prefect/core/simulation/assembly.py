"""Puts worlds together from measurements, also where some of them are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from xonar_prefect.core.memory import UNKNOWN_MEMORY_MIB
from xonar_prefect.core.models import (
    Device,
    Limits,
    Profile,
)
from xonar_prefect.core.simulation.truth import MeasuredPairs, ProcessorSharing
from xonar_prefect.core.simulation.world import STARTING_UP, Submission, World

_ANY_REQUEST_MIB = 1

Profiles = Mapping[str, Mapping[str, Profile]]


def gpus(
    count: int,
    model: str,
    memory_mib: int | None = None,
    *,
    first: int = 0,
    per_host: int | None = None,
) -> tuple[Device, ...]:
    """Return empty GPUs.

    Args:
        count: How many.
        model: Their model.
        memory_mib: Memory of each; None when unknown.
        first: Index of the first.
        per_host: How many are in a host; None where all are in the same.
    """
    return tuple(
        Device(
            id=f"GPU-{index:04d}",
            index=index,
            model=model,
            memory_mib=memory_mib or UNKNOWN_MEMORY_MIB,
            host=None if per_host is None else f"host {index // per_host}",
        )
        for index in range(first, first + count)
    )


def assemble(
    profiles: Profiles,
    devices: Iterable[Device],
    *,
    throughputs: Mapping[tuple[str, str, str], float] | None = None,
    clashes: Iterable[tuple[str, str, str]] = (),
    startup_active_fraction: float = 0.0,
) -> World:
    """Return a world in which measured pairs are as measured, and others share the processor.

    Pairs that ran out of memory do so again. Where the memory of the GPU or of a training is
    unknown this is known beforehand; elsewhere peaks are what is known.

    Args:
        profiles: By kind, then device model.
        devices: The devices.
        throughputs: Normalised throughput of the first beside the second, by device model.
        clashes: Pairs that ran out of memory, by device model; each pair sorted.
        startup_active_fraction: How much of its time a training that starts up uses the device.
    """
    devices = tuple(devices)
    models = tuple(dict.fromkeys(device.model for device in devices))
    clashes = frozenset(clashes)
    active_fractions = {
        (model, kind): profile.active_fraction
        for kind, by_model in profiles.items()
        for model, profile in by_model.items()
        if profile.active_fraction is not None
    }
    active_fractions.update({(model, STARTING_UP): startup_active_fraction for model in models})
    sharing = ProcessorSharing(active_fractions=active_fractions)
    world = World(
        devices=devices,
        truth=MeasuredPairs(throughputs=throughputs or {}, clashes=clashes, otherwise=sharing),
        profiles=profiles,
        reference_models=models,
        limits=Limits(max_wait_seconds=float("inf")),
        startup_uses_device=startup_active_fraction > 0,
    )
    return replace(
        world,
        clashes=frozenset(
            (model, first, second)
            for model, first, second in clashes
            if lacks_memory(world, first) or lacks_memory(world, second)
        ),
    )


def lacks_memory(world: World, kind: str) -> bool:
    """Tell whether it is unknown, of a device or the kind, if trainings of it fit somewhere."""
    return bool(of_unknown_memory(world.devices)) or lacks_peak(world, kind)


def lacks_peak(world: World, kind: str) -> bool:
    """Tell whether the memory peak of a kind is unknown on a device model."""
    return any(not world.peak_memory_mib(kind, device.model) for device in world.devices)


def of_unknown_memory(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices whose memory is unknown."""
    return tuple(device for device in devices if device.memory_mib == UNKNOWN_MEMORY_MIB)


def with_requests(world: World, submissions: Iterable[Submission]) -> tuple[Submission, ...]:
    """Let those declare next to no memory of which it is unknown, so that `clashes` decides."""
    lacking: dict[str, bool] = {}
    requested = []
    for each in submissions:
        if each.kind not in lacking:
            lacking[each.kind] = lacks_memory(world, each.kind)
        requested.append(
            replace(each, memory_request_mib=_ANY_REQUEST_MIB) if lacking[each.kind] else each
        )
    return tuple(requested)
