"""Which kinds are alike: the same parameters but for their numbers, the closer the more alike.

`{"model": "resnet", "batch_size": "64"}` and the same with a batch of 128 are alike;
`"LM (batch size 10)"` as a single parameter is read the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from operator import sub
from typing import NamedTuple

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Likeness(NamedTuple):
    """What a kind is compared by.

    Attributes:
        family: Its parameters without their numbers; kinds of different families are not alike.
        logarithms: The logarithms of those numbers, in the order of the parameters' names.
    """

    family: str
    logarithms: tuple[float, ...]


def likeness_of(parameters: Mapping[str, str]) -> Likeness | None:
    """Return what a kind with these parameters is compared by; None without parameters.

    >>> likeness_of({"model": "bert", "batch_size": "1"})
    Likeness(family='batch_size=#;model=bert', logarithms=(0.0,))
    """
    return _likeness_of(tuple(sorted(parameters.items()))) if parameters else None


@lru_cache(maxsize=4096)
def _likeness_of(parameters: tuple[tuple[str, str], ...]) -> Likeness:
    text = ";".join(f"{name}={value}" for name, value in parameters)
    numbers = [float(number) for number in _NUMBER.findall(text)]
    family = _NUMBER.sub("#", text)
    return Likeness(family, tuple(math.log(max(number, 1e-6)) for number in numbers))


def similarity(first: Likeness, second: Likeness, scale: float) -> float:
    """Return 1 for kinds that are the same, less the further their numbers are apart.

    Args:
        first: A kind.
        second: Another.
        scale: The sum of differences of logarithms at which e times less is left.
    """
    if first.family != second.family:
        return 0.0
    apart = map(abs, map(sub, first.logarithms, second.logarithms))
    return math.exp(-sum(apart) / scale)
