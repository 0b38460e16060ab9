"""How much of a processor core's time others took from a training that wanted it.

A training waits in the run queue for its own threads as well as for those of others, and others may
be busy while it waits for nothing. Only what is both counts as taken. Its threads wait at the same
time, too, so their waits must not be added up: the one that computes most stands for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

UNDISTURBED = 0.05
"""Share of a time that others may take, and it is still the training's own."""

# A training that gets less of a core than this has no step time worth correcting.
_MOST = 0.95
# user nice system idle iowait irq softirq steal: all but idle and iowait is busy, and steal is no
# time of this machine at all.
_BUSY_FIELDS = (0, 1, 2, 5, 6)


class Account(NamedTuple):
    """What the kernel had counted at one moment; only a `difference` means something.

    Attributes:
        at_s: The moment.
        own_seconds: Processor time of the training's process tree.
        busy_seconds: How long the cores it may use were busy, with whatever.
        threads: How long each of its threads ran, and how long it was ready to run and did not.
        cores: Number of cores that it may use.
    """

    at_s: float
    own_seconds: float
    busy_seconds: float
    threads: Mapping[str, tuple[float, float]]
    cores: int = 1


class Contention(NamedTuple):
    """What the kernel counted between two moments.

    Attributes:
        elapsed_s: Time between them.
        own_seconds: Processor time of the training's process tree.
        waited_seconds: How long it wanted a core and had none.
        busy_seconds: How long the cores it may use were busy, with whatever.
        threads: How many of its threads computed or waited at a time, as far as it computed.
    """

    elapsed_s: float
    own_seconds: float
    waited_seconds: float
    busy_seconds: float
    threads: float = 1.0


def difference(before: Account, after: Account) -> Contention:
    """Return what was counted between two moments."""
    own_seconds = after.own_seconds - before.own_seconds
    ran, waited = max(
        (
            (after.threads[thread][0] - ran, after.threads[thread][1] - waited)
            for thread, (ran, waited) in before.threads.items()
            if thread in after.threads
        ),
        default=(0.0, 0.0),
    )
    return Contention(
        elapsed_s=after.at_s - before.at_s,
        own_seconds=own_seconds,
        waited_seconds=own_seconds * waited / ran if ran > 0 else 0.0,
        busy_seconds=after.busy_seconds - before.busy_seconds,
        threads=max(1.0, own_seconds / ran) if ran > 0 else 1.0,
    )


def displaced_fraction(counted: Contention, cores: int) -> float:
    """Return the share of a time in which others had the cores that it wanted.

    One thread that waits holds up all of a training that has no other; of several that compute at a
    time, each holds up its part.

    >>> displaced_fraction(Contention(10, own_seconds=4, waited_seconds=5, busy_seconds=7), 1)
    0.3
    """
    elapsed = counted.elapsed_s * min(counted.threads, cores)
    if elapsed <= 0:
        return 0.0
    foreign = counted.busy_seconds - counted.own_seconds
    return min(max(0.0, min(counted.waited_seconds, foreign)) / elapsed, _MOST)


def undisturbed_fraction(active_fraction: float, displaced: float) -> float:
    """Return the active share of the time that a training would have needed, had others let it.

    What it waits for may come in the time that others take from it, reads ahead most of all. Then
    that time is no loss: alone it would have waited instead. How much of it was lost cannot be
    counted. It is taken to be the share in which the training was active while it was not
    displaced: all of it where nothing was waited for, little where it mostly waits.

    Args:
        active_fraction: Active share of the time as it passed.
        displaced: Share of the time in which others had the cores that it wanted.

    >>> undisturbed_fraction(0.5, 0.5)
    1.0
    >>> round(undisturbed_fraction(0.3, 0.4), 3)
    0.375
    """
    lost = displaced * min(1.0, active_fraction / (1.0 - displaced))
    return min(1.0, active_fraction / (1.0 - lost))


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
