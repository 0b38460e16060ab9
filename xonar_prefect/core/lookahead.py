"""What becomes of one device: who finishes when, if a certain training comes next.

The future of a device is played through with expected durations and slowdowns: whoever runs
progresses at the speed that the set on the device leaves it, and whenever a slot is free, a simple
rule decides who comes next. The rule is only a guess at what will be decided then, since every
later decision is made anew; but it prices the first step with all that follows from it.

Costs are sums of weighted completion times from now on, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import truediv
from typing import NamedTuple

LOOK = 3
"""How many of the next in line a slot is offered to while the future is played through."""

Speeds = Mapping[tuple[int, ...], tuple[float, ...]]
"""The speed of each training of a set, by their loads: 1 alone, 1 / slowdown beside others."""
_ALONE: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Future:
    """A training that runs on the device or will be offered to it.

    No tuple, since slots are what Python reads fastest, and nothing is read more often.

    Attributes:
        seconds: Time it still needs alone on this device.
        load: Number of its kind, for the speeds.
        weight: What a second of its completion time counts.
        mib: Memory that it takes, or is thought to where it is blind; None for all of it.
        priority: Nobody with a larger number comes before it.
        blind: Starts only on an empty device, and nobody joins before its kind is profiled.
        kind: Number of its kind in the queue; -1 for running ones.
    """

    seconds: float
    load: int
    weight: float
    mib: int | None
    priority: int = 1
    blind: bool = False
    kind: int = -1


class Scene(NamedTuple):
    """A device and who waits for it.

    Attributes:
        running: Who is on it.
        waiting: Who will come to it, in the order of preference.
        slots: Trainings that it takes.
        room_mib: Memory for all of them together.
        behind: Weight of those who wait for this device beyond `waiting`.
        speeds: The speeds of sets.
        profile_seconds: How long a blind training keeps others away.
        profiled: Numbers of the blind kinds that are being profiled elsewhere: they are taken as
            known, as they will be within `profile_seconds`.
    """

    running: tuple[Future, ...]
    waiting: Sequence[Future]
    slots: int
    room_mib: int
    behind: float
    speeds: Speeds
    profile_seconds: float
    profiled: frozenset[int] = frozenset()


class Pause(Enum):
    """For how long nobody else may come."""

    NO = 0
    UNTIL_NEXT_END = 1
    UNTIL_EMPTY = 2


def cost(scene: Scene, first: Future | None, pause: Pause = Pause.NO) -> float:
    """Return the sum of completion times if `first` joins now.

    Args:
        scene: The device; `first` is not among its waiting.
        first: Who comes now; None for nobody.
        pause: For how long the slots that are then free stay free.
    """
    speeds_of, slots = scene.speeds, scene.slots
    running = list(scene.running)
    left = [each.seconds for each in running]
    if first is not None:
        running.append(first)
        left.append(first.seconds)
    waiting = list(scene.waiting)
    weight_waiting = scene.behind
    for each in waiting:
        weight_waiting += each.weight
    profiled = set(scene.profiled)
    closed_for = scene.profile_seconds if first is not None and first.blind else 0.0
    blind_kind = first.kind if closed_for and first is not None else -1
    now = total = 0.0
    while True:
        if not closed_for and pause is Pause.NO:
            while waiting and len(running) < slots:
                place = _next(scene, running, left, waiting, weight_waiting, profiled)
                if place is None:
                    break
                chosen = waiting.pop(place)
                weight_waiting -= chosen.weight
                running.append(chosen)
                left.append(chosen.seconds)
                if chosen.blind and chosen.kind not in profiled:
                    closed_for, blind_kind = scene.profile_seconds, chosen.kind
                    break
        if not running:
            break
        count = len(running)
        if count == 1:
            speeds, step = _ALONE, left[0]
        else:
            speeds = speeds_of[tuple([each.load for each in running])]
            step = min(map(truediv, left, speeds))
        if closed_for:
            step = min(step, closed_for)
            closed_for -= step
            if closed_for <= 1e-9:
                closed_for = 0.0
                profiled.add(blind_kind)
        now += step
        index = 0
        for speed in speeds:
            rest = left[index] - step * speed
            if rest <= 1e-6:
                total += now * running[index].weight
                del running[index], left[index]
            else:
                left[index] = rest
                index += 1
        if not running:
            closed_for = 0.0
        if not running or (pause is Pause.UNTIL_NEXT_END and len(running) < count):
            pause = Pause.NO
    for each in waiting:  # what never fits here: it waits at least as long as the device is busy
        total += (now + each.seconds) * each.weight
    return total + now * scene.behind


def _next(
    scene: Scene,
    running: list[Future],
    left: list[float],
    waiting: list[Future],
    weight_waiting: float,
    profiled: set[int],
) -> int | None:
    """Return the place in line of who comes next; None for nobody."""
    if not running:
        return 0
    room_mib = scene.room_mib
    for each in running:
        if each.mib is None:
            return None
        room_mib -= each.mib
    candidates = _candidates(waiting, room_mib, profiled)
    if len(running) == 1:
        return _beside_one(candidates, running[0], left[0], scene.speeds, weight_waiting)
    return _beside_several(candidates, running, scene.speeds)


def _candidates(
    waiting: Iterable[Future], room_mib: int, profiled: set[int]
) -> Iterator[tuple[int, Future]]:
    """Yield the first of the line that may come, all of one priority, with their places."""
    found = 0
    priority = None
    for place, each in enumerate(waiting):
        mib, own_priority = each.mib, each.priority
        if mib is None or mib > room_mib or (each.blind and each.kind not in profiled):
            continue
        if own_priority != priority:
            if priority is not None:
                return
            priority = own_priority
        yield place, each
        found += 1
        if found == LOOK:
            return


def _beside_one(
    candidates: Iterator[tuple[int, Future]],
    there: Future,
    rest: float,
    speeds_of: Speeds,
    weight_waiting: float,
) -> int | None:
    """Return whom to serve beside one costs least, per weight; None where it costs less to wait.

    The two are followed to their ends.

    Args:
        candidates: Who may come, with their places in line.
        there: Who runs.
        rest: Time that it still needs alone.
        speeds_of: The speeds of sets.
        weight_waiting: The weight of all who wait.
    """
    load_there, weight_there = there.load, there.weight
    best: int | None = None
    least = math.inf
    for place, each in candidates:
        seconds, weight = each.seconds, each.weight
        speed_there, speed = speeds_of[load_there, each.load]
        finish = seconds / speed
        end_there = rest / speed_there
        if finish <= end_there:
            end = finish
            clear = end_there = finish + (rest - finish * speed_there)
        else:
            clear = end = end_there + (seconds - end_there * speed)
        delay = weight_there * (end_there - rest)
        others = max(0.0, weight_waiting - weight)
        serial = rest + seconds
        if weight * (end - serial) + delay + others * (clear - serial) > 0:
            continue
        price = (clear - rest + delay) / weight
        if price < least:
            best, least = place, price
    return best


def _beside_several(
    candidates: Iterator[tuple[int, Future]], running: list[Future], speeds_of: Speeds
) -> int | None:
    """Return who finishes soonest, per weight, of those that make the set as a whole faster."""
    loads = tuple([each.load for each in running])
    speed_without = sum(speeds_of[loads])
    best: int | None = None
    least = math.inf
    for place, each in candidates:
        everybody = (*loads, each.load)
        together = speeds_of[everybody]
        price = each.seconds / together[-1] / each.weight
        if sum(together) > speed_without and price < least:
            best, least = place, price
    return best
