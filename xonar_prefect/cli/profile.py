"""`xonar profile -- COMMAND`: profiles any training command, without Prefect."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from xonar_prefect.errors import CommandError, XonarError

if TYPE_CHECKING:
    from xonar_prefect.profiling.command import GpuMemory


def profile(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> int:
    """Run a training command and show how active it was, how long its steps took, what it needed.

    Steps of Keras, PyTorch optimizers and `xonar_prefect.steps(...)` are seen in every Python
    process that it starts; without any, its processes are sampled. The command keeps its input,
    its output and its exit code (127 if it is not found, 126 if it cannot be run); the card is
    written to standard error.

    Example: `xonar profile --json mlp.json -- python train.py --epochs 2`, and then
    `xonar profiles import mlp.json`

    Args:
        command: The command, after `--`.
        json: A file for the profile as JSON, which `xonar profiles import` takes in.
    """
    from xonar_prefect.cli.profile_card import measured, print_profile
    from xonar_prefect.profiling.command import profile_command

    if not command:
        raise CommandError.missing()
    if command[0].startswith("-"):
        raise CommandError.misspelt_option(command[0])
    if json is not None:
        _require_writable(json)
    result = profile_command(command, environment=os.environ, gpu_memory_mib=_gpu_memory())
    print_profile(shlex.join(command), result)
    if json is not None:
        text = measured(result, command)
        try:
            json.write_text(text, encoding="utf-8")
        except OSError as error:
            # The training has its own exit code, whatever becomes of its profile.
            problem = CommandError.not_written(json, error.strerror or error)
            sys.stderr.write(f"xonar: {problem}\n{text}")
    return result.exit_code


def _require_writable(target: Path) -> None:
    """Find out before hours of training that the profile could not be written.

    Raises:
        CommandError: It could not.
    """
    from xonar_prefect.cli.output import try_to_write

    if str(target) == "-":
        raise CommandError.mixed()
    if not target.absolute().parent.is_dir():
        raise CommandError.unwritable(target, "there is no such directory")
    try:
        try_to_write(target)
    except OSError as error:
        raise CommandError.unwritable(target, error.strerror or error) from error


def _gpu_memory() -> GpuMemory | None:
    """Return what tells the memory of processes on NVIDIA GPUs; None where there are none."""
    from xonar_prefect.devices.discovery import discover

    try:
        gpus = discover("nvidia", visible=os.environ.get("CUDA_VISIBLE_DEVICES"), cpu_cores=None)
        ids = [reading.id for reading in gpus.read({})]
    except XonarError:
        return None

    def used_mib(pids: Sequence[int]) -> int | None:
        try:
            readings = gpus.read(dict.fromkeys(ids, pids))
        except XonarError:
            return None
        known = [
            [used for pid in pids if (used := reading.used_by_pid.get(pid)) is not None]
            for reading in readings
        ]
        return max((sum(each) for each in known if each), default=None)

    return used_mib
