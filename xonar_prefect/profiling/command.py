"""Runs any training command and measures it from inside, where it is Python, and from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType

from xonar_prefect.core.models import Profile
from xonar_prefect.errors import CommandError
from xonar_prefect.profiling.injection import Orders, has_room, reports_directory, watched
from xonar_prefect.profiling.processes import NO_GPU, describe_cores
from xonar_prefect.profiling.reports import (
    Report,
    merge,
    read_reports,
    read_statuses,
    read_unwatched,
)
from xonar_prefect.profiling.sampling import ProcessSampler, Sampled

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

PROCESS_SAMPLING = "process-sampling"
"""Source of an active fraction that was estimated from outside, without steps."""

UNKNOWN_GPU = "unknown"
"""Device model of a command of which only the driver knows that it used a GPU."""

GpuMemory = Callable[[Sequence[int]], "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProfile:
    """What came out of a command.

    Attributes:
        exit_code: Its exit code, as a shell would tell it: 128 and the signal that ended it.
        profile: What was measured; an estimate where no step was seen; None without anything.
        processes: Number of processes in which steps were seen.
        steps_seen: Steps of the process that took most, measured or not.
        unwatched: Why processes could not be watched that import a framework.
        had_room: Whether processes could write down what they saw.
    """

    exit_code: int
    profile: Profile | None
    processes: int
    steps_seen: int = 0
    unwatched: tuple[str, ...] = ()
    had_room: bool = True


def profile_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    gpu_memory_mib: GpuMemory | None = None,
) -> CommandProfile:
    """Run a command to its end and profile it; its input, output and signals stay its own.

    Args:
        command: The command with its arguments.
        environment: Its environment, to which is added what makes its interpreters be watched.
        gpu_memory_mib: Tells what processes use on a GPU; None where nobody does.

    Raises:
        CommandError: It cannot be started.
    """
    with reports_directory(Orders(starter=os.getpid())) as directory:
        if directory is not None:
            environment = watched(environment, directory)
        with _Forwarding() as forwarding:
            try:
                process = subprocess.Popen(command, env=environment)
            except (OSError, ValueError) as error:
                raise CommandError.not_started(command[0], error) from error
            forwarding.process = process
            sampler = ProcessSampler(process.pid, gpu_memory_mib)
            exit_code = process.wait()
            sampled = sampler.stop()
        reports = [] if directory is None else read_reports(directory)
        statuses = [] if directory is None else read_statuses(directory)
        unwatched = () if directory is None else read_unwatched(directory)
        had_room = directory is not None and has_room(directory)
    return CommandProfile(
        exit_code=exit_code if exit_code >= 0 else 128 - exit_code,
        profile=_profile(reports, sampled, on_gpu=gpu_memory_mib is not None),
        processes=sum(report.profile.steps > 0 for report in reports),
        steps_seen=max((status.steps_done for status in statuses), default=0),
        unwatched=unwatched,
        had_room=had_room,
    )


def _profile(reports: Sequence[Report], sampled: Sampled, *, on_gpu: bool) -> Profile | None:
    profile = merge(reports)
    if profile is None:
        return None if sampled.active_fraction is None else _estimate(sampled, on_gpu=on_gpu)
    if any(report.on_gpu for report in reports):
        # The driver's own account has the context in it, which the allocator's only guesses.
        if sampled.peak_gpu_mib is not None:
            return replace(profile, peak_memory_mib=sampled.peak_gpu_mib, memory_source="nvml")
        return profile
    peak = max(profile.peak_memory_mib or 0, sampled.peak_resident_mib or 0)
    return replace(profile, peak_memory_mib=peak or None, memory_source="rss" if peak else None)


def _estimate(sampled: Sampled, *, on_gpu: bool) -> Profile:
    """Say what can be said without steps; about a GPU that is its memory only."""
    used_gpu = on_gpu and sampled.peak_gpu_mib is not None
    return Profile(
        key="command",
        device_model=UNKNOWN_GPU if used_gpu else NO_GPU,
        active_fraction=None if used_gpu else sampled.active_fraction,
        active_fraction_interval=None if used_gpu else sampled.active_fraction_interval,
        peak_memory_mib=sampled.peak_gpu_mib if used_gpu else sampled.peak_resident_mib,
        memory_source="nvml" if used_gpu else "rss",
        source=None if used_gpu else PROCESS_SAMPLING,
        device=None if used_gpu else describe_cores(),
    )


class _Forwarding:
    """Outlives what ends the command, to tell what was measured, and passes on what it missed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Forwarding:  # noqa: PYI034 (`Self` needs Python 3.11)
        self._before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if self.process is None:
            raise KeyboardInterrupt
        # Ctrl-C at a terminal reaches the command by itself; a second one would cut short how it
        # ends.
        if number not in (signal.SIGINT, signal.SIGQUIT) or not _is_in_the_foreground():
            with contextlib.suppress(OSError):
                self.process.send_signal(number)


def _is_in_the_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
