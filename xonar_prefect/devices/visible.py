"""Which of the host's devices the worker itself was given, from its `CUDA_VISIBLE_DEVICES`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xonar_prefect.errors import VisibleDevicesError

# What is written for "no device at all": CUDA's own two, and Slurm's for a job without GPUs.
_NONE = ("", "-1", "NoDevFiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """A device under the names that CUDA knows it by.

    Attributes:
        id: Its UUID.
        gpu_index: Position of its GPU in PCI bus order, as `nvidia-smi` counts.
        gpu_id: UUID of its GPU; the same as `id` unless it is a MIG slice.
        old_name: A MIG slice's name before driver 470: `MIG-GPU-<UUID>/<instance>/<instance>`.
    """

    id: str
    gpu_index: int
    gpu_id: str
    old_name: str | None = None


def names_no_device(visible: str | None) -> bool:
    """Tell whether the variable is set and takes all devices away."""
    return visible is not None and visible.strip() in _NONE


def select(visible: str | None, listed: Sequence[ListedDevice]) -> frozenset[str]:
    """Return the ids of the devices that may be used.

    An entry is an index (as with `CUDA_DEVICE_ORDER=PCI_BUS_ID`), a UUID or the beginning of
    one. An index or UUID of a GPU in MIG mode stands for all its slices. CUDA ignores what
    follows the first entry it cannot match, and starts with fewer devices than were meant; here
    that is an error.

    Raises:
        VisibleDevicesError: An entry matches no device, or more than one.
    """
    if visible is None:
        return frozenset(device.id for device in listed)
    if names_no_device(visible):
        return frozenset()
    chosen: set[str] = set()
    for entry in (part.strip() for part in visible.split(",")):
        matches = _matches(entry, listed)
        if not matches:
            raise VisibleDevicesError(visible, entry, "matches no device", _present(listed))
        if len(matches) > 1:
            raise VisibleDevicesError(
                visible, entry, "is the beginning of several", _present(listed)
            )
        chosen |= matches.pop()
    return frozenset(chosen)


def _matches(entry: str, listed: Sequence[ListedDevice]) -> set[frozenset[str]]:
    """Return each thing (a slice, or all of a GPU) that the entry may mean."""
    if entry.isdecimal():
        of_gpu = frozenset(d.id for d in listed if d.gpu_index == int(entry))
        return {of_gpu} if of_gpu else set()
    beginning = entry.casefold()
    if not beginning.startswith(("gpu-", "mig-")):
        return set()
    gpus = {d.gpu_id for d in listed if d.gpu_id.casefold().startswith(beginning)}
    matches = {frozenset(d.id for d in listed if d.gpu_id == gpu) for gpu in gpus}
    for device in listed:
        slice_names = (device.id if device.id != device.gpu_id else "", device.old_name or "")
        if any(name.casefold().startswith(beginning) for name in slice_names if name):
            matches.add(frozenset((device.id,)))
    return matches


def _present(listed: Sequence[ListedDevice]) -> Iterable[str]:
    return (f"{device.gpu_index} = {device.id}" for device in listed)
