"""How a training ended, and what follows: a final state, or another release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

MOST_RELEASES_OUT_OF_MEMORY = 3
"""Releases of a training that may run out of device memory by its own fault; the last is alone."""

MOST_RELEASES_BESIDE_OFFENDERS = 3
"""Releases that may end through the fault of others and are not charged; then they are."""

MOST_FAILED_LAUNCHES = 3

_LONGEST_PAUSE_SECONDS = 600.0


class Cause(str, Enum):
    """Why a training's processes are gone. Stored as a label: never renamed."""

    ITSELF = "ITSELF"  # its own exit code or signal: nobody else is to blame
    GPU_OUT_OF_MEMORY = "GPU_OUT_OF_MEMORY"
    HOST_OUT_OF_MEMORY = "HOST_OUT_OF_MEMORY"
    KILLED = "KILLED"  # by SIGKILL, and nobody says why
    VANISHED = "VANISHED"  # with its launcher, without an exit code
    HOST_REBOOTED = "HOST_REBOOTED"
    NOT_LAUNCHED = "NOT_LAUNCHED"
    WORKER_STOPPED = "WORKER_STOPPED"  # by a worker that was told to take its trainings with it


INFRASTRUCTURE = frozenset(
    {Cause.HOST_OUT_OF_MEMORY, Cause.KILLED, Cause.VANISHED, Cause.HOST_REBOOTED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one release ended.

    Attributes:
        cause: Why.
        sentence: The same for people.
        own_fault: For memory: it needs more than it was given.
        had_everything: For memory: it had the device to itself, and all of it.
        never_ended: For memory: it went on asking for ever, and had to be stopped.
    """

    cause: Cause
    sentence: str
    own_fault: bool = True
    had_everything: bool = False
    never_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a run has been through so far; it survives every restart as labels of the run.

    Attributes:
        requeues: Times it was started again after the infrastructure had killed it.
        out_of_memory: Releases that ran out of device memory by its own fault.
        beside_offenders: Releases that ran out of it by the fault of others.
        failed_launches: Launches that failed.
    """

    requeues: int = 0
    out_of_memory: int = 0
    beside_offenders: int = 0
    failed_launches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows from an ending.

    Attributes:
        again: Put it back into the queue.
        tally: Its tally from now on.
        pause_seconds: How long it is not released, so that what fails does not fail all the time.
        alone: From now on it shares no device.
        sentence: Ending and consequence, for people.
    """

    again: bool
    tally: Tally
    pause_seconds: float = 0.0
    alone: bool = False
    sentence: str


def pause_seconds(times: int, first_seconds: float) -> float:
    """Return how long to wait before the next release, after so many that failed.

    >>> [pause_seconds(times, 10.0) for times in (1, 2, 3, 20)]
    [10.0, 20.0, 40.0, 600.0]
    """
    return min(_LONGEST_PAUSE_SECONDS, first_seconds * 2.0 ** min(times - 1, 20))


def judge(
    ending: Ending, tally: Tally, max_requeues: int, *, first_pause_seconds: float = 10.0
) -> Verdict:
    """Decide what follows from an ending.

    Args:
        ending: How the release ended.
        tally: What the run had been through before.
        max_requeues: How often it may be started again after the infrastructure has killed it.
        first_pause_seconds: How long it waits then; twice as long after each further time.
    """
    if ending.cause is Cause.GPU_OUT_OF_MEMORY:
        return _out_of_memory(ending, tally, first_pause_seconds)
    if ending.cause is Cause.WORKER_STOPPED:
        return Verdict(again=True, tally=tally, sentence=f"Requeued: {ending.sentence}")
    if ending.cause is Cause.NOT_LAUNCHED:
        times, most, which = tally.failed_launches + 1, MOST_FAILED_LAUNCHES - 1, "launch"
        counted = replace(tally, failed_launches=times)
    elif ending.cause in INFRASTRUCTURE:
        times, most, which = tally.requeues + 1, max_requeues, "restart"
        counted = replace(tally, requeues=times)
    else:
        return Verdict(again=False, tally=tally, sentence=ending.sentence)
    if times > most:
        tried = f" It was requeued {_times(most)} before." if most else ""
        return Verdict(again=False, tally=counted, sentence=f"{ending.sentence}{tried}")
    return Verdict(
        again=True,
        tally=counted,
        pause_seconds=pause_seconds(times, first_pause_seconds),
        sentence=f"Requeued ({which} {times} of {most}): {ending.sentence}",
    )


def may_run_out_of_memory_again(tally: Tally) -> bool:
    """Tell whether a release that runs out of device memory would be followed by another."""
    return tally.out_of_memory + 1 < MOST_RELEASES_OUT_OF_MEMORY


def is_last_try(tally: Tally) -> bool:
    """Tell whether the next release is the last that may run out of device memory."""
    return tally.out_of_memory == MOST_RELEASES_OUT_OF_MEMORY - 1


def _out_of_memory(ending: Ending, tally: Tally, first_pause_seconds: float) -> Verdict:
    charged = ending.own_fault or tally.beside_offenders >= MOST_RELEASES_BESIDE_OFFENDERS
    if not charged:
        counted = replace(tally, beside_offenders=tally.beside_offenders + 1)
        return Verdict(
            again=True,
            tally=counted,
            pause_seconds=pause_seconds(counted.beside_offenders, first_pause_seconds),
            alone=is_last_try(tally),
            sentence=f"Requeued: {ending.sentence} This is not counted against it.",
        )
    counted = replace(tally, out_of_memory=tally.out_of_memory + 1)
    hopeless = ending.had_everything and counted.out_of_memory > 1
    if hopeless or counted.out_of_memory >= MOST_RELEASES_OUT_OF_MEMORY:
        return Verdict(
            again=False,
            tally=counted,
            sentence=f"{ending.sentence} It ran out of device memory "
            f"{counted.out_of_memory} times and is not released again.",
        )
    alone = ending.never_ended or is_last_try(counted)
    manner = "alone" if alone else "with more memory"
    return Verdict(
        again=True,
        tally=counted,
        alone=alone,
        sentence=f"Requeued, {manner} (release {counted.out_of_memory + 1} of "
        f"{MOST_RELEASES_OUT_OF_MEMORY}): {ending.sentence}",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
