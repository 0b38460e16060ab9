"""What the interference model expects of one training, whoever is beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """What is expected of a training beside whomever, on one device model.

    Attributes:
        key: Its kind; None when unknown.
        fraction: Its active fraction, or what stands in for it.
        informed: Whether its active fraction is known.
        seen: Whether it was ever observed beside anybody.
        suffers: What it suffers, a logarithm.
        causes: What it makes others suffer, a logarithm.
    """

    key: str | None
    fraction: float
    informed: bool
    seen: bool
    suffers: float
    causes: float


def is_known(part: Part, partners: Sequence[Part]) -> bool:
    """Tell whether the slowdown of a training beside these partners is more than a guess."""
    return not partners or part.seen or all(each.informed for each in (part, *partners))
