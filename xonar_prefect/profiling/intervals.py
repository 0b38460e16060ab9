"""Arithmetic of time intervals, linear in their number once sorted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""From its begin up to its end, in whatever unit."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans that are sorted and neither overlap nor touch.

    >>> union([(5, 7), (0, 2), (1, 3), (3, 4)])
    [(0, 4), (5, 7)]
    """
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def subtract(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return the time of `spans` that is not in `others`; both as `union` returns them.

    >>> subtract([(0, 10)], [(2, 3), (9, 12)])
    [(0, 2), (3, 9)]
    """
    rest: list[Span] = []
    first = 0
    for begin, end in spans:
        position = begin
        while first < len(others) and others[first][1] <= begin:
            first += 1
        index = first
        while index < len(others) and others[index][0] < end:
            if others[index][0] > position:
                rest.append((position, others[index][0]))
            position = max(position, others[index][1])
            index += 1
        if position < end:
            rest.append((position, end))
    return rest


class Coverage:
    """How much of any window some spans cover; a window costs the logarithm of their number."""

    def __init__(self, spans: list[Span]) -> None:
        """Take spans as `union` returns them."""
        self._spans = spans
        self._begins = [begin for begin, _ in spans]
        self._before = [0, *accumulate(end - begin for begin, end in spans)]

    def within(self, begin: int, end: int) -> int:
        """Return the covered time between two points.

        >>> Coverage([(0, 4), (5, 7)]).within(1, 6)
        4
        """
        return self._until(end) - self._until(begin)

    def _until(self, point: int) -> int:
        index = bisect_right(self._begins, point)
        if index == 0:
            return 0
        begin, end = self._spans[index - 1]
        return self._before[index - 1] + min(end, point) - begin
