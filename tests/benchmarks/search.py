"""What perfect knowledge could reach on one device: annealing over release order and who is alone.

A plan is an order of trainings and, for each, whether it runs alone. The next in the order starts
as soon as a slot is free; one that is to be alone waits for the empty device, and nobody joins it.
Durations and slowdowns are known exactly, and all trainings are there from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

_FIRST_TEMPERATURE = 0.05  # of the cost; the last is a thousandth of it
_COOLING = 1e-3


def completion_times(
    order: Sequence[int],
    alone: Sequence[bool],
    seconds: Sequence[float],
    slowdowns: Sequence[Sequence[float]],
) -> list[float]:
    """Return when each training ends, by its place in `seconds`.

    Args:
        order: Numbers of the trainings in the order of their release.
        alone: Whether each runs alone.
        seconds: Durations alone.
        slowdowns: Slowdown of the first beside the second; infinite where they do not fit.
    """
    ends = [0.0] * len(seconds)
    left = list(seconds)
    there: list[int] = []
    now, following = 0.0, 0
    while there or following < len(order):
        while following < len(order) and len(there) < 2:
            candidate = order[following]
            if there:
                (other,) = there
                if alone[candidate] or alone[other] or math.isinf(slowdowns[candidate][other]):
                    break
            there.append(candidate)
            following += 1
        if len(there) == 1:
            (only,) = there
            now += left[only]
            ends[only] = now
            there = []
            continue
        first, second = there
        slow_first, slow_second = slowdowns[first][second], slowdowns[second][first]
        until_first, until_second = left[first] * slow_first, left[second] * slow_second
        step = min(until_first, until_second)
        now += step
        if until_first <= until_second:
            ends[first] = now
            left[second] -= step / slow_second
            there = [second]
        else:
            ends[second] = now
            left[first] -= step / slow_first
            there = [first]
    return ends


def best_average(
    seconds: Sequence[float],
    slowdowns: Sequence[Sequence[float]],
    *,
    steps: int,
    dice: Random,
) -> float:
    """Return the least average completion time that the search finds.

    It begins with the shorter trainings first, all of which may share.
    """
    count = len(seconds)
    order = sorted(range(count), key=lambda number: seconds[number])
    alone = [False] * count

    def cost() -> float:
        return sum(completion_times(order, alone, seconds, slowdowns)) / count

    current = best = cost()
    for step in range(steps):
        temperature = best * _FIRST_TEMPERATURE * _COOLING ** (step / steps)
        before = (list(order), list(alone))
        move = dice.random()
        if move < 0.3:
            number = dice.randrange(count)
            alone[number] = not alone[number]
        elif move < 0.65:
            first, second = dice.randrange(count), dice.randrange(count)
            order[first], order[second] = order[second], order[first]
        else:
            order.insert(dice.randrange(count), order.pop(dice.randrange(count)))
        after = cost()
        if after <= current or dice.random() < math.exp((current - after) / temperature):
            current = after
            best = min(best, current)
        else:
            order, alone = before
    return best
