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


@dataclass(frozen=True)
class Families:
    """The kinds that were observed, by family, and how alike those of a family are.

    Attributes:
        likenesses: What kinds are compared by, by key.
        observed: The keys of those that were observed.
        scale: The sum of differences of logarithms at which kinds are e times less alike.
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
        """Return how alike each member of its family is to a kind, from 0 to 1.

        Args:
            likeness: What the kind is compared by.
            but: The key of a member that is left out: 0.
        """
        at = (likeness, but)
        found = self._alike.get(at)
        if found is None:
            own = likeness.logarithms
            others = self._logarithms.get(likeness.family, ())
            found = self._alike[at] = [
                math.exp(-sum(map(abs, map(sub, own, other))) / self.scale) for other in others
            ]
            members = self.members(likeness.family)
            if but in members:
                found[members.index(but)] = 0.0
        return found

    @cached_property
    def _logarithms(self) -> Mapping[str, Sequence[tuple[float, ...]]]:
        return {
            family: [self.likenesses[key].logarithms for key in members]
            for family, members in self._members.items()
        }
