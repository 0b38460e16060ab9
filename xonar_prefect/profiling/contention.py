"""How much of a processor core's time others took from a training that wanted it.

A training waits in the run queue for its own threads as well as for those of others, and others may
be busy while it waits for nothing. Only what is both counts as taken.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

# A training that gets less of a core than this has no step time worth correcting.
_MOST = 0.95
# user nice system idle iowait irq softirq steal: all but idle and iowait is busy, and steal is no
# time of this machine at all.
_BUSY_FIELDS = (0, 1, 2, 5, 6)


class Account(NamedTuple):
    """What the kernel had counted at one moment; only differences mean something.

    Attributes:
        at_s: The moment.
        own_seconds: Processor time of the training's process tree.
        waited_seconds: How long its threads were ready to run and did not.
        busy_seconds: How long the cores it may use were busy, with whatever.
    """

    at_s: float
    own_seconds: float
    waited_seconds: float
    busy_seconds: float


def displaced_fraction(before: Account, after: Account, cores: int) -> float:
    """Return the share of the time in between in which others had the cores it wanted.

    >>> displaced_fraction(Account(0, 0, 0, 0), Account(10, 4, 5, 7), cores=1)
    0.3
    """
    elapsed = (after.at_s - before.at_s) * cores
    if elapsed <= 0:
        return 0.0
    waited = after.waited_seconds - before.waited_seconds
    foreign = (after.busy_seconds - before.busy_seconds) - (after.own_seconds - before.own_seconds)
    return min(max(0.0, min(waited, foreign)) / elapsed, _MOST)


def busy_ticks(stat: str, cores: Collection[int]) -> int:
    r"""Return the ticks in which these cores were busy, from the text of `/proc/stat`.

    >>> busy_ticks("cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8\ncpu1 1 1 1 1 1 1 1 1\n", {0})
    19
    """
    total = 0
    for line in stat.splitlines():
        name, *counts = line.split()
        core = name.removeprefix("cpu")
        if name.startswith("cpu") and core.isdigit() and int(core) in cores:
            total += sum(int(counts[field]) for field in _BUSY_FIELDS if field < len(counts))
    return total
