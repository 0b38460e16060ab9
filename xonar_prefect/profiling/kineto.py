"""Reads what PyTorch's profiler recorded: pure functions of its events, without PyTorch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xonar_prefect.profiling.activity import (
    COMMUNICATION_KERNEL,
    Activity,
    StepTimes,
    busiest,
)
from xonar_prefect.profiling.intervals import Span, union

_NANOSECONDS = 1e9
# A GPU's stream that waits for another one, and labels that only surround what is executed.
_NO_WORK = re.compile(
    r"^(ProfilerStep|Optimizer\.|##|nccl:)|(stream|context|event).*(sync|wait)", re.IGNORECASE
)
_HOST_OPERATION = re.compile(r"^(aten|torchvision|inductor|triton|fbgemm|mkldnn)\b")
_HOST_COMMUNICATION = re.compile(r"^(gloo|nccl|mpi|ucc|c10d)::?|^record_param_comms")
_HOST_INPUT = re.compile(r"^enumerate\(DataLoader\)")


class Event(NamedTuple):
    """What was executed when, in nanoseconds since the epoch; `gpu` is None on the host."""

    name: str
    begin_ns: int
    end_ns: int
    gpu: int | None = None


def read_steps(
    windows: Sequence[Span], waits: Iterable[Span], events: Iterable[Event], *, on_gpu: bool
) -> tuple[StepTimes, ...]:
    """Return the times of the steps.

    A GPU works asynchronously: what a step started may be executed in the window of a later one.
    Over steps that follow one another nothing is lost by that, so use them together.

    Args:
        windows: From the begin of each step to its end, by the host's clock, in order.
        waits: When the training waited for input.
        events: All that was recorded, in any order.
        on_gpu: The device is a GPU; else the host itself.
    """
    if not windows:
        return ()
    events = list(events)
    known_waits = union([*waits, *_input_waits(events)])
    if on_gpu:
        activities = _gpu_activities(events, known_waits)
    else:
        activities = [_host_activity(events, known_waits)]
    return busiest(activities, windows)


def _input_waits(events: Iterable[Event]) -> Iterable[Span]:
    for event in events:
        if event.gpu is None and _HOST_INPUT.match(event.name):
            yield event.begin_ns, event.end_ns


def _gpu_activities(events: Iterable[Event], waits: list[Span]) -> list[Activity]:
    active: dict[int, list[Span]] = defaultdict(list)
    communication: dict[int, list[Span]] = defaultdict(list)
    for event in events:
        if event.gpu is None or _NO_WORK.search(event.name):
            continue
        kinds = communication if COMMUNICATION_KERNEL.search(event.name) else active
        kinds[event.gpu].append((event.begin_ns, event.end_ns))
    return [
        Activity(active[gpu], communication[gpu], waits, ticks_per_second=_NANOSECONDS)
        for gpu in sorted(active.keys() | communication.keys())
    ]


def _host_activity(events: Iterable[Event], waits: list[Span]) -> Activity:
    active: list[Span] = []
    communication: list[Span] = []
    for event in events:
        if event.gpu is not None:
            continue
        span = event.begin_ns, event.end_ns
        if _HOST_COMMUNICATION.match(event.name):
            communication.append(span)
        elif _HOST_OPERATION.match(event.name):
            active.append(span)
    return Activity(active, communication, waits, ticks_per_second=_NANOSECONDS)
