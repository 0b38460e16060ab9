"""What really happens to co-located trainings; the policies never see it, only its effects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

from xonar_prefect.core.interference import prior_slowdown

Pair = tuple[str, str]


class Truth(Protocol):
    """The world's own law of interference and of memory."""

    def slowdown(self, kind: str, partners: Sequence[str], device_model: str) -> float:
        """Return step time beside these partners / step time alone; 1 without partners."""
        ...

    def out_of_memory(self, kinds: Sequence[str], device_model: str) -> bool:
        """Tell whether these kinds run out of memory on one device, whatever their peaks say."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSharing:
    """Trainings take turns at the device: exact mean-value analysis, 1 + u v for two.

    Attributes:
        active_fractions: By device model and kind. A kind without one counts as always active, so
            that nobody is promised a gain from sharing that was never measured.
        sharing_cost: What sharing costs on top, as a share of the predicted excess.
    """

    active_fractions: Mapping[tuple[str, str], float]
    sharing_cost: float = 0.0

    def slowdown(self, kind: str, partners: Sequence[str], device_model: str) -> float:
        """Return step time beside these partners / step time alone."""
        if not partners:
            return 1.0
        fractions = [self.active_fractions.get((device_model, each), 1.0) for each in partners]
        own = self.active_fractions.get((device_model, kind), 1.0)
        return prior_slowdown(own, fractions, self.sharing_cost)

    def out_of_memory(self, kinds: Sequence[str], device_model: str) -> bool:  # noqa: ARG002
        """Return False: peaks say it all."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """Pairs as they were measured; what was not measured follows another law.

    More than two slow a training down by the product of what each of them does to it, unless a
    pair among these was not measured.

    Attributes:
        throughputs: Normalised throughput of the first beside the second, by device model.
        clashes: Pairs that ran out of memory, by device model; each pair sorted.
        otherwise: The law for the others.
    """

    throughputs: Mapping[tuple[str, str, str], float]
    otherwise: Truth
    clashes: frozenset[tuple[str, str, str]] = field(default=frozenset())

    def is_measured(self, pair: Pair, device_model: str) -> bool:
        """Tell whether both sides of this pair were measured together."""
        first, second = pair
        return (device_model, first, second) in self.throughputs and (
            device_model,
            second,
            first,
        ) in self.throughputs

    def slowdown(self, kind: str, partners: Sequence[str], device_model: str) -> float:
        """Return step time beside these partners / step time alone."""
        measured = [self.throughputs.get((device_model, kind, each)) for each in partners]
        known = [value for value in measured if value is not None]
        if len(known) < len(partners):
            return self.otherwise.slowdown(kind, partners, device_model)
        return 1.0 / math.prod(known)

    def out_of_memory(self, kinds: Sequence[str], device_model: str) -> bool:
        """Tell whether two of these kinds were seen to run out of memory together."""
        return any(
            (device_model, first, second) in self.clashes
            for first, second in combinations(sorted(kinds), 2)
        ) or self.otherwise.out_of_memory(kinds, device_model)
