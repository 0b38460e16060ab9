"""Which kinds are alike: the same parameters but for their numbers, the closer the more alike.

`{"model": "resnet", "batch_size": "64"}` and the same with a batch of 128 are alike;
`"LM (batch size 10)"` as a single parameter is read the same way.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
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


@dataclass(frozen=True)
class Families:
    """The kinds that were observed, by family, and how alike those of a family are.

    Attributes:
        likenesses: What kinds are compared by, by key.
        observed: The keys of those that were observed.
        scale: The scale of `similarity`.
    """

    likenesses: Mapping[str, Likeness] = field(default_factory=dict)
    observed: frozenset[str] = frozenset()
    scale: float = 1.0
    _alike: dict[tuple[Likeness, str | None], list[float]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def _members(self) -> Mapping[str, Sequence[str]]:
        members: dict[str, list[str]] = defaultdict(list)
        for key in sorted(self.observed & self.likenesses.keys()):
            members[self.likenesses[key].family].append(key)
        return members

    def members(self, family: str) -> Sequence[str]:
        """Return the keys of those of a family that were observed."""
        return self._members.get(family, ())

    def alike(self, likeness: Likeness, but: str | None) -> Sequence[float]:
        """Return how alike each member of its family is to a kind; 0 for one that is left out."""
        at = (likeness, but)
        found = self._alike.get(at)
        if found is None:
            found = self._alike[at] = [
                0.0 if key == but else similarity(likeness, self.likenesses[key], self.scale)
                for key in self.members(likeness.family)
            ]
        return found
