"""Trainings that no device of this worker can ever take: refused instead of held for ever."""

from __future__ import annotations

from collections import Counter, defaultdict

from xonar_prefect.core import memory
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.hosts import Host
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Place


def refuse_impossible(board: Board) -> None:
    """Refuse what could not start even if host and devices were empty and available.

    Nothing is refused for want of devices while there is none at all: they may only be gone for a
    moment.
    """
    _refuse_beyond_host(board)
    if not board.places:
        return
    groups: dict[tuple[object, ...], list[Place]] = defaultdict(list)
    for place in board.places:
        groups[place.memory_type, place.device.is_slice].append(place)
    alike = [(places[0], len(places)) for places in groups.values()]
    # What was never read may be of any model and any size.
    unknown = sum(count for place, count in alike if place.device.memory_mib == 0)
    whole = Counter[str]()
    for place, count in alike:
        if place.device.memory_mib > 0 and not place.device.is_slice:
            whole[place.device.model] += count
    most = max(whole.values(), default=0)
    for kind, training in tuple(board.queue):
        if training.gpus > 1 and training.gpus > most + unknown:
            board.refuse(kind, ReasonCode.TOO_FEW_DEVICES, _too_few(board, training, most))
            continue
        if unknown:
            continue
        if not _is_possible(kind, training, alike):
            board.refuse(kind, ReasonCode.NEVER_FITS, _never_fits(board, kind, training))


def _is_possible(kind: Kind, training: Training, alike: list[tuple[Place, int]]) -> bool:
    """Tell whether enough devices of one model could take the training if they were empty."""
    if training.gpus == 1:
        return any(place.need_of(kind).possible for place, _ in alike)
    possible = Counter[str]()
    for place, count in alike:
        if not place.device.is_slice and place.need_of(kind).possible:
            possible[place.device.model] += count
    return max(possible.values(), default=0) >= training.gpus


def _refuse_beyond_host(board: Board) -> None:
    if board.snapshot.host == Host():
        return
    for kind, training in tuple(board.queue):
        reason = board.admission.never(training)
        if reason is not None:
            board.refuse(kind, ReasonCode.NEVER_FITS, reason)
    board.refuse_without_device(ReasonCode.NEVER_FITS, board.admission.never)


def _too_few(board: Board, training: Training, most: int) -> str:
    if any(place.device.is_slice for place in board.places):
        return (
            f"This training needs {training.gpus} devices of one model at once, but this worker "
            f"has {most} at most that are no MIG slices, and CUDA shows a process only one slice "
            "of several; ask for one device, or submit it to a pool with whole GPUs."
        )
    total = len(board.places)
    have = f"{total} device{'s' * (total > 1)}"
    if most < total:
        have += f", {most} of one model at most"
    return (
        f"This training needs {training.gpus} devices of one model at once, but this worker has "
        f"{have}; ask for fewer, or submit it to a pool with more."
    )


def _never_fits(board: Board, kind: Kind, training: Training) -> str:
    limits = board.snapshot.limits

    def offer(place: Place) -> tuple[int, int]:
        return (memory.capacity_mib(place.device, limits), -place.device.index)

    largest = max(board.places, key=offer)
    need = largest.need_of(kind)
    if need.possible:  # a gang: too few devices are as large as this one
        largest = max((p for p in board.places if not p.need_of(kind).possible), key=offer)
        need = largest.need_of(kind)
    device = largest.device
    parts = [f"{device.memory_mib} in all"]
    if device.reserved_mib:
        parts.append(f"{device.reserved_mib} kept by the driver")
    if headroom := memory.headroom_mib(device, limits):
        parts.append(f"headroom {headroom}")
    which = f"{largest.label}, the largest," if training.gpus == 1 else largest.label
    return (
        f"This training needs {need.mib} MiB on {'a' if training.gpus == 1 else 'each'} device, "
        f"but {which} offers {memory.capacity_mib(device, limits)} MiB even when it is empty "
        f"({', '.join(parts)}); lower its memory request, or submit it to a pool with larger "
        "devices."
    )
