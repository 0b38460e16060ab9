"""A profile in the terminal, and as JSON with fields that stay as they are."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xonar_prefect.artifacts import COLOURS, confidence, meaning, shares
from xonar_prefect.cli.output import UNKNOWN, memory, milliseconds, percent
from xonar_prefect.core.codec import profile_to_dict
from xonar_prefect.core.models import Profile
from xonar_prefect.devices.cpu import core_model, processor_model
from xonar_prefect.profiling.command import UNKNOWN_GPU, CommandProfile
from xonar_prefect.profiling.processes import NO_GPU, ONE_CORE

FIELDS = (
    "active_fraction",
    "communication_fraction",
    "input_fraction",
    "other_fraction",
    "step_seconds",
    "step_seconds_interval",
    "active_fraction_interval",
    "peak_memory_mib",
    "memory_source",
    "steps",
    "source",
    "framework",
    "device",
)
"""Fields of the JSON; other programs read them, so none is ever renamed."""

_BAR_CELLS = 60
# What is told apart where there are no colours, too; all else is idle.
_BLOCKS = {"active": "\u2588", "communication": "\u2593", "input": "\u2592"}
_IDLE_BLOCK = "\u2591"


def measured(result: CommandProfile, command: Sequence[str]) -> str:
    """Return a profile as JSON, with what `xonar profiles import` asks beside it.

    Unknown is null.
    """
    profile = result.profile
    known = {} if profile is None else profile_to_dict(profile)
    fields = {name: known.get(name) for name in FIELDS}
    return (
        json.dumps(
            {
                **fields,
                "steps": fields["steps"] or 0,
                "device_model": None if profile is None else _device_model(profile),
                "measured_at_s": known.get("measured_at_s") or time.time(),
                "command": shlex.join(command),
                "exit_code": result.exit_code,
            },
            indent=2,
        )
        + "\n"
    )


def _device_model(profile: Profile) -> str | None:
    """Return the device model as workers name it; None where it is not known.

    Several cores are no device of a worker: they get a name of their own.
    """
    if profile.device_model == NO_GPU:
        one = profile.device == ONE_CORE
        return core_model() if one else f"{profile.device} ({processor_model()})"
    return None if profile.device_model == UNKNOWN_GPU else profile.device_model


def print_profile(command: str, result: CommandProfile, console: Console | None = None) -> None:
    """Print the card of a command."""
    console = console or Console(stderr=True, highlight=False)
    console.print(Text(f"\nProfile of {command}", style="bold"), soft_wrap=True)
    profile = result.profile
    if profile is None:
        console.print("Nothing was measured: the command ended before it could be looked at.")
        return
    if profile.steps == 0:
        console.print(_why_no_step(result))
    if profile.active_fraction is not None:
        console.print(_bar(profile))
        console.print(_legend(profile))
    console.print(_figures(result, profile))
    if profile.steps > 0 or result.exit_code == 0:  # of what failed before, nothing follows
        console.print(meaning(profile))
    console.print(confidence(profile))


def _why_no_step(result: CommandProfile) -> str:
    if not result.had_room:
        return (
            f"No step was seen, as nothing could be written to {tempfile.gettempdir()}: make room "
            "there, or set TMPDIR to another directory."
        )
    if result.unwatched:
        return (
            "No step was seen, as what watches could not be loaded: "
            f"{'; '.join(result.unwatched)}. Install xonar_prefect there, and look for modules of "
            "yours that hide one it needs."
        )
    if result.steps_seen > 0:
        seen = "1 step was" if result.steps_seen == 1 else f"{result.steps_seen} steps were"
        return (
            f"{seen} seen, which is too few to measure: the first ones warm up, and it takes two "
            "after those; train longer."
        )
    return (
        "No step was seen: train longer, or, if it did, use Keras fit or a PyTorch optimizer, "
        "or mark its steps with xonar_prefect.steps(...). Processes that do not inherit the "
        "command's environment are not watched, nor are those of python -E, -I and -S."
    )


def _bar(profile: Profile) -> Text:
    bar = Text()
    filled, total = 0, 0.0
    for name, share in shares(profile):
        total += share
        cells = round(total * _BAR_CELLS) - filled
        bar.append(_BLOCKS.get(name, _IDLE_BLOCK) * cells, style=COLOURS[name])
        filled += cells
    return bar


def _legend(profile: Profile) -> Text:
    legend = Text()
    for name, share in shares(profile):
        legend.append(f"{_BLOCKS.get(name, _IDLE_BLOCK)} ", style=COLOURS[name])
        legend.append(f"{name} {percent(share)}   ")
    return legend


def _figures(result: CommandProfile, profile: Profile) -> Table:
    step = milliseconds(profile.step_seconds)
    if profile.step_seconds_interval is not None:
        low, high = profile.step_seconds_interval
        step = f"{step} (95 %: {milliseconds(low)} to {milliseconds(high)})"
    peak = memory(profile.peak_memory_mib)
    if peak is not None and profile.memory_source is not None:
        peak = f"{peak} ({profile.memory_source})"
    rows = [
        ("step", step),
        ("peak memory", peak),
        ("steps measured", str(profile.steps)),
        ("active time from", profile.source),
        ("framework", profile.framework),
        ("device", profile.device),
    ]
    if result.processes > 1:
        rows.insert(3, ("processes with steps", str(result.processes)))
    if result.exit_code != 0:
        rows.append(("exit code of the command", str(result.exit_code)))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(name, Text(UNKNOWN if value is None else value))
    return table
