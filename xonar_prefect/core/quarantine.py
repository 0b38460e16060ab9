"""Devices that take no training for a while: why, since when and until when.

A GPU that ends every training in seconds is always free and so attracts the whole queue. These
rules tell such a device from a training that fails wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from xonar_prefect.errors import InvalidValueError


class QuarantineCause(str, Enum):
    """What keeps trainings off a device. Stored and shown: never renamed."""

    BY_HAND = "by_hand"  # a person drained it
    DEVICE = "device"  # it or its driver says so: lost, broken memory, a mode that forbids sharing
    FAILS_FAST = "fails_fast"  # one training after the other failed there within seconds
    LAUNCH_FAILS = "launch_fails"  # the host could not start a training's processes
    PROCESSES_STAY = "processes_stay"  # a killed process of a training does not go
    MEMORY_NOT_BACK = "memory_not_back"  # a training is gone, but its memory is not free


RELEASED_BY_HAND = frozenset(
    (
        QuarantineCause.BY_HAND,
        QuarantineCause.FAILS_FAST,
        QuarantineCause.LAUNCH_FAILS,
        QuarantineCause.MEMORY_NOT_BACK,
    )
)
"""What a person may end by a word; the others last as long as what can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A time in which nothing is released to a device; what runs there goes on.

    Attributes:
        host: The host.
        device: Id of the device.
        cause: What began it, and what its end depends on.
        reason: The same as a clause, with the facts.
        begun_at_s: When it began.
        until_s: When it ends at the latest; None where it lasts until its cause is gone.
        ended_at_s: When it ended; None as long as it lasts.
        pids: Processes whose memory or end is waited for.
        used_mib: For memory that is not attributed to processes: what the device had in use
            before the training began.
    """

    host: str
    device: str
    cause: QuarantineCause
    reason: str
    begun_at_s: float
    until_s: float | None = None
    ended_at_s: float | None = None
    pids: tuple[int, ...] = ()
    used_mib: int | None = None

    @property
    def clause(self) -> str:
        """Its reason with its end, where that is known.

        >>> Quarantine(
        ...     host="h",
        ...     device="GPU-1",
        ...     cause=QuarantineCause.BY_HAND,
        ...     reason="drained by ann: fan",
        ...     begun_at_s=0.0,
        ...     until_s=7200.0,
        ... ).clause
        'drained by ann: fan (until 1970-01-01 02:00 UTC)'
        """
        if self.until_s is None:
            return self.reason
        return f"{self.reason} (until {time_of_day(self.until_s)})"


def time_of_day(at_s: float) -> str:
    """Return a time for people, to the minute.

    >>> time_of_day(7260.0)
    '1970-01-01 02:01 UTC'
    """
    return f"{datetime.fromtimestamp(at_s, timezone.utc):%Y-%m-%d %H:%M} UTC"


def unavailable_because(quarantines: Iterable[Quarantine]) -> str | None:
    """Return in one clause why a device takes nothing; None where nothing keeps it from that."""
    order = list(QuarantineCause)
    by_cause = sorted(quarantines, key=lambda each: (order.index(each.cause), each.begun_at_s))
    return "; ".join(each.clause for each in by_cause) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How a training fared on a device, as far as it says something about the device.

    Attributes:
        device: Id of the device.
        run_id: Id of its flow run.
        kind: What it has in common with trainings that fail for the same reason of their own:
            its deployment.
        ended_at_s: When it ended, or is known to have worked.
        worked: It ran past the first minute or so, or completed; otherwise it failed before.
    """

    device: str
    run_id: str
    kind: str
    ended_at_s: float
    worked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailFastRule:
    """When a device counts as failing fast, and for how long it is then left alone.

    Attributes:
        failures: Different trainings that must have failed in a row; 0 for never.
        within_seconds: A training that fails later than this after its launch failed by itself.
        window_seconds: How far back failures count.
        pause_seconds: The first quarantine; each further one is twice as long.
        longest_pause_seconds: The longest.
    """

    failures: int = 3
    within_seconds: float = 60.0
    window_seconds: float = 600.0
    pause_seconds: float = 300.0
    longest_pause_seconds: float = 3600.0

    def __post_init__(self) -> None:
        if self.failures < 0:
            raise InvalidValueError("failures", self.failures, "zero or greater")


def fails_fast(
    attempts: Sequence[Attempt],
    device: str,
    rule: FailFastRule,
    *,
    now_s: float,
    on_probation: bool = False,
) -> tuple[Attempt, ...]:
    """Return the failures that speak against a device; empty where they do not suffice.

    Only failures since a training last worked there count, each training once. A kind of training
    that is at fault itself says nothing about a device: one that failed fast on several devices
    and worked on none, or that fails on a device between others that work there.

    Args:
        attempts: What is known, in any order, of all devices.
        device: The device.
        rule: The rule.
        now_s: The time.
        on_probation: It has been in quarantine for this, and nothing has worked there since:
            then one failure suffices.
    """
    needed = 1 if on_probation else rule.failures
    if rule.failures == 0:
        return ()
    recent = [each for each in attempts if now_s - each.ended_at_s <= rule.window_seconds]
    here = sorted(
        (each for each in recent if each.device == device),
        key=lambda each: (each.ended_at_s, each.run_id, each.kind),
    )
    worked_at_s = max((each.ended_at_s for each in here if each.worked), default=float("-inf"))
    against = {
        each.run_id: each
        for each in here
        if not each.worked
        and each.ended_at_s > worked_at_s
        and not _is_at_fault(each.kind, device, recent, worked_at_s)
    }
    return tuple(against.values()) if len(against) >= needed else ()


def _is_at_fault(kind: str, device: str, recent: Sequence[Attempt], worked_at_s: float) -> bool:
    """Tell whether trainings of this kind fail for a reason of their own."""
    of_kind = [each for each in recent if each.kind == kind]
    if any(each.worked for each in of_kind):
        return False
    here = {each.run_id for each in of_kind if each.device == device}
    elsewhere = any(each.run_id not in here for each in of_kind)  # a gang is here too
    before = any(each.device == device and each.ended_at_s < worked_at_s for each in of_kind)
    return elsewhere or before


def pause_seconds(earlier: int, rule: FailFastRule) -> float:
    """Return how long a device that fails fast is left alone: longer each time it does so again.

    Args:
        earlier: Its quarantines for this, since which nothing has worked there.
        rule: The rule.

    >>> [pause_seconds(earlier, FailFastRule()) for earlier in (0, 1, 2, 9)]
    [300.0, 600.0, 1200.0, 3600.0]
    """
    return min(rule.pause_seconds * 2.0 ** min(earlier, 16), rule.longest_pause_seconds)
