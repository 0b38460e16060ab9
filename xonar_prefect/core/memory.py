"""What fits where, in whole MiB, with the arithmetic as text.

    foreign   = max(0, used - what our residents were seen to use)
    headroom  = max(least, share of the device)
    available = total - reserved - headroom - foreign - sum over residents of max(request, used)

A resident whose use cannot be attributed counts twice while it starts: once in `foreign`, once
with its request. That errs on the safe side: unknown is never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xonar_prefect.core.models import (
    Device,
    Limits,
    Profile,
    Resident,
    Training,
)

LEAST_SHARE_FOR_UNKNOWN = 0.25
"""Share of a device that must be available to a training of unknown peak. Without it, a device
filled by somebody else's processes would look empty and draw one unprofiled training after the
other into running out of memory."""

MOST_OF_THE_DEVICE = 0.7
"""Share of a device from which a framework may hold memory in advance: JAX takes three quarters,
TensorFlow nearly all."""

UNKNOWN_MEMORY_MIB = 2**30
"""Memory of a simulated GPU whose memory is unknown: more than all trainings together ask for."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a training must be given on one device.

    Attributes:
        mib: Memory to reserve; None for the whole of an empty device.
        possible: False when not even the empty device could offer it.
        known: False when neither a declared request nor a measured peak is there.
        why: Why it must be all of an empty device, where that is not plain.
    """

    mib: int | None
    possible: bool = True
    known: bool = True
    why: str = ""


def peak_with_margin_mib(peak_mib: int, limits: Limits) -> int:
    """Return a measured peak plus its margin.

    >>> peak_with_margin_mib(1005, Limits(margin_ratio=0.1, margin_mib=64))
    1106
    >>> peak_with_margin_mib(100, Limits(margin_ratio=0.1, margin_mib=64))
    164
    """
    return peak_mib + max(math.ceil(limits.margin_ratio * peak_mib), limits.margin_mib)


def request_mib(training: Training, device_model: str, limits: Limits) -> int | None:
    """Return the memory to reserve for a training on each device of this model.

    The larger of the declared request and the measured peak with its margin: the owner may know
    of growth that the profile has not seen, but a declaration below what was measured would only
    end the training, since the request is also what its allocator is capped to.

    What a memory-elastic training was measured to use says how much there was, not how much it
    needs: for it only a declared request counts, which is also its cap.

    Returns:
        None when it was neither declared nor measured: then it needs the whole of an empty
        device.
    """
    declared = training.memory_request_mib
    if training.memory_elastic:
        return declared
    profile = training.profile_on(device_model)
    if profile is None or profile.peak_memory_mib is None:
        return declared
    measured = peak_with_margin_mib(profile.peak_memory_mib, limits)
    return measured if declared is None else max(declared, measured)


def terms(limits: Limits) -> tuple[float, ...]:
    """Return all of the limits that decides what a training needs."""
    return (limits.margin_ratio, limits.margin_mib, limits.headroom_ratio, limits.headroom_mib)


def need_on(training: Training, device: Device, limits: Limits) -> Need:
    """Return what the training must be given on this device.

    Where only the margin or the headroom stands between a measured peak and the device, the
    training is given the whole device instead of being refused: it has run there before, and
    frameworks that take all the memory they find (TensorFlow by default) always measure so.
    """
    request = request_mib(training, device.model, limits)
    if request is None and training.memory_elastic:
        return Need(None, why="it takes what memory it finds and declares no memory request")
    if request is None:
        return Need(None, known=False)
    profile = training.profile_on(device.model)
    capacity = capacity_mib(device, limits)
    if request <= capacity:
        held = _held_without_need(profile, device)
        return Need(request) if held is None else Need(None, why=held)
    peak = None if profile is None else profile.peak_memory_mib
    declared_fits = (training.memory_request_mib or 0) <= capacity
    if declared_fits and peak is not None and peak <= device.memory_mib - device.reserved_mib:
        return Need(None)
    return Need(request, possible=False)


def is_taken_in_advance(held_mib: int, peak_mib: int, device_mib: int) -> bool:
    """Tell whether a framework holds most of a device without using half of what it holds.

    >>> is_taken_in_advance(15900, 2100, 16384), is_taken_in_advance(15900, 9000, 16384)
    (True, False)
    """
    return held_mib >= MOST_OF_THE_DEVICE * device_mib and 2 * peak_mib <= held_mib


def _held_without_need(profile: Profile | None, device: Device) -> str | None:
    """Say how a training was seen to take the whole device and to use little of it, if it was.

    Beside a partner it would take whatever is left, and end one of the two.
    """
    if profile is None or profile.held_memory_mib is None or profile.peak_memory_mib is None:
        return None
    held, peak = profile.held_memory_mib, profile.peak_memory_mib
    if not is_taken_in_advance(held, peak, device.memory_mib):
        return None
    return f"it was seen to take {held} MiB in advance, of which it used {peak}"


def headroom_mib(device: Device, limits: Limits) -> int:
    """Return what of the device is never given away.

    >>> gpu = Device(id="GPU-1", index=1, model="L40", memory_mib=49152)
    >>> headroom_mib(gpu, Limits(headroom_mib=256, headroom_ratio=0.01))
    492
    """
    return max(limits.headroom_mib, math.ceil(limits.headroom_ratio * device.memory_mib))


def capacity_mib(device: Device, limits: Limits) -> int:
    """Return what the device could offer if nobody were on it."""
    return max(0, device.memory_mib - device.reserved_mib - headroom_mib(device, limits))


def foreign_mib(device: Device) -> int:
    """Return what is in use on the device by anybody but our residents."""
    return max(0, device.used_mib - sum(resident.used_mib for resident in device.residents))


def available_mib(device: Device, limits: Limits) -> int:
    """Return what may still be reserved on the device; 0 beside a resident that has all of it."""
    available = capacity_mib(device, limits) - foreign_mib(device)
    for resident in device.residents:
        if resident.request_mib is None:
            return 0
        available -= max(resident.request_mib, resident.used_mib)
    return max(0, available)


def fits(need: Need, device: Device, available: int, limits: Limits) -> bool:
    """Tell whether the need can be met now, `available` being what the device can still give."""
    if not need.possible:
        return False
    if need.mib is not None:
        return need.mib <= available
    least = LEAST_SHARE_FOR_UNKNOWN * capacity_mib(device, limits)
    return not device.residents and available > 0 and available >= least


def _share_of(resident: Resident) -> str:
    name = resident.training.name
    if resident.request_mib is None:
        return f"all of it reserved for '{name}'"
    if resident.used_mib > resident.request_mib:
        return f"{resident.used_mib} used by '{name}'"
    return f"{resident.request_mib} reserved for '{name}'"


def account(device: Device, limits: Limits) -> str:
    """Return where the device's memory is, as a clause.

    >>> gpu = Device(id="GPU-1", index=1, model="L40", memory_mib=49152, used_mib=8192)
    >>> account(gpu, Limits(headroom_mib=1024))
    'GPU 1 has 39936 MiB available of 49152 MiB (8192 in use by others, headroom 1024)'
    """
    parts = []
    if foreign_mib(device):
        parts.append(f"{foreign_mib(device)} in use by others")
    parts += [_share_of(resident) for resident in device.residents]
    if device.reserved_mib:
        parts.append(f"{device.reserved_mib} kept by the driver")
    if headroom := headroom_mib(device, limits):
        parts.append(f"headroom {headroom}")
    where = f" ({', '.join(parts)})" if parts else ""
    return (
        f"{device.label} has {available_mib(device, limits)} MiB available "
        f"of {device.memory_mib} MiB{where}"
    )


def shortage(need: Need, device: Device, limits: Limits, who: str) -> str:
    """Return why the need of `who` cannot be met on the device now, as a sentence."""
    if not need.possible:
        return (
            f"{device.label} offers {capacity_mib(device, limits)} MiB at most, "
            f"even when it is empty, but {who} needs {need.mib} MiB."
        )
    have = account(device, limits)
    if need.mib is not None:
        return f"{have}, but {who} needs {need.mib} MiB."
    if need.known:
        why = f": {need.why}" if need.why else ""
        return f"{have}, but {who} needs all that an empty device has{why}."
    unknown = f"the memory peak of {who} is unknown"
    remedy = "declare its memory request to let it start sooner"
    if device.residents:
        there = " and ".join(f"'{resident.training.name}'" for resident in device.residents)
        return f"{device.label} has {there}, but {unknown}, so it needs an empty device; {remedy}."
    least = math.ceil(LEAST_SHARE_FOR_UNKNOWN * capacity_mib(device, limits))
    return f"{have}, but {unknown}, so it needs at least {least} MiB; {remedy}."
