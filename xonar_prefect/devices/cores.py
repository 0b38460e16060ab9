"""Which processor cores stand in as devices."""

from __future__ import annotations

import re
from collections.abc import Collection

from xonar_prefect.errors import CoreListError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_cores(text: str, available: Collection[int]) -> tuple[int, ...]:
    """Read a list of cores as `taskset` writes it.

    >>> parse_cores("0,2-3", available=range(8))
    (0, 2, 3)

    Raises:
        CoreListError: It cannot be read, or a core in it is not available.
    """
    cores: set[int] = set()
    for part in (part.strip() for part in text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise CoreListError(text, f"{part!r} is neither a core nor a range", sorted(available))
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise CoreListError(text, f"{part!r} ends before it begins", sorted(available))
        # Bounds first: a mistyped range of billions must not be written out.
        absent = [core for core in (first, last) if core not in available]
        absent = absent or [core for core in range(first, last + 1) if core not in available]
        if absent:
            raise CoreListError(text, f"core {absent[0]} is not available", sorted(available))
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def default_cores(available: Collection[int]) -> tuple[int, ...]:
    """Return all cores but the first, which is left to the worker; all where there are two.

    >>> default_cores({0, 1, 2, 3})
    (1, 2, 3)
    >>> default_cores({0, 1})
    (0, 1)
    """
    cores = sorted(available)
    return tuple(cores[1:] if len(cores) > 2 else cores)
