"""The run directory: all that a worker and a training tell each other, as files on one host.

The worker writes `placement.json` before the launch. The training process replaces `status.json`
as it advances, leaves `outofmemory.json` where it is to be released again, and heeds the worker's
`stop.json`. The launcher writes `exit.json` when the training's command has ended. Standard output
and error go to `output.log`. Every file is replaced atomically, so a reader sees an old or a new
version and never half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from xonar_prefect.core.codec import profile_from_dict
from xonar_prefect.core.models import Profile

RUN_DIRECTORY_VARIABLE = "XONAR_RUN_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the worker tells the training.

    Attributes:
        run_id: Id of the flow run; also the marker by which its processes are found.
        devices: Ids of its devices; empty for none.
        device_kind: `"nvidia"`, `"cpu"` or `"none"`.
        device_model: Device model, a field of its profile.
        entrypoint: Entry point of its deployment, a part of its profile key.
        gpus: Number of devices, a part of its profile key.
        memory_request_mib: Reserved for it on each device; None for all of it.
        memory_limit_mib: What its allocator may take on each device; None for no cap.
        shared: A partner was there when it was launched.
        known_profiles: Profiles that make measuring unnecessary, by profile key.
        rendezvous_port: A port that was free at launch, for distributed trainings.
        runs_again_out_of_memory: Should it run out of device memory, it is released again, so
            its process leaves the run's state alone.
    """

    run_id: str
    devices: tuple[str, ...] = ()
    device_kind: str = "none"
    device_model: str = "none"
    entrypoint: str | None = None
    gpus: int = 1
    memory_request_mib: int | None = None
    memory_limit_mib: int | None = None
    shared: bool = False
    known_profiles: Mapping[str, Profile] = field(default_factory=dict)
    rendezvous_port: int | None = None
    runs_again_out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the training tells the worker about its progress.

    Attributes:
        phase: `"starting"`, `"profiling"`, `"training"` or `"done"`.
        steps_done: Steps finished since the training began.
        steps_total: Steps in all; None when unknown.
        stepping_seconds: Sum of the durations of those steps, measured as in the profile, so
            that a difference of two reports gives a step time without validation or checkpoints.
        last_step_at_s: End of the latest step, seconds since the epoch; None before the first.
        peak_memory_mib: Peak memory of the process tree so far; None when unknown.
        profiles_published: Profiles published as artifacts so far; when it grows, the worker
            reads them.
        updated_at_s: When this was written.
    """

    phase: str = "starting"
    steps_done: int = 0
    steps_total: int | None = None
    stepping_seconds: float = 0.0
    last_step_at_s: float | None = None
    peak_memory_mib: int | None = None
    profiles_published: int = 0
    updated_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the training's command ended.

    Attributes:
        exit_code: Its exit code; negative for a signal.
        ended_at_s: When.
        oom_kills: Processes that the kernel ended meanwhile for lack of host memory, in the
            launcher's control group or else on the host; None when unknown.
        second_copy: The command was never started: another copy of this run is alive here.
    """

    exit_code: int
    ended_at_s: float
    oom_kills: int | None = None
    second_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a training tells that ran out of device memory and left its run's state alone.

    Attributes:
        message: The error, in one line.
        profile_key: Key of the training task that it came from; None when unknown.
    """

    message: str
    profile_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What a worker tells a training before it ends it: the worker then sees to its run's state.

    Attributes:
        reason: Why, as a sentence.
        runs_again: It is to be released again.
    """

    reason: str
    runs_again: bool = False


_T = TypeVar("_T", Placement, Status, Exit, OutOfMemory, Stop)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> RunDirectory | None:
        """Return the run directory this process was launched with, if it was launched by us."""
        value = (os.environ if environment is None else environment).get(RUN_DIRECTORY_VARIABLE)
        return cls(Path(value)) if value else None

    @property
    def output(self) -> Path:
        """Standard output and error of the training."""
        return self.path / "output.log"

    @property
    def is_launched(self) -> bool:
        """Whether a worker has made it for a training."""
        return self._file(Placement).exists()

    @property
    def exit_file(self) -> Path:
        """Written by the launcher; its presence means that the command has ended."""
        return self.path / "exit.json"

    def write(self, value: Placement | Status | Exit | OutOfMemory | Stop) -> None:
        """Replace the file of this value.

        Raises:
            OSError: It could not be written; then the old file stands.
        """
        target = self._file(type(value))
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            partial.write_text(json.dumps(asdict(value)), encoding="utf-8")
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)  # half a file would only take room on a full disk
            raise

    def read_placement(self) -> Placement | None:
        """Read what the worker told the training; None when absent."""
        values = self._read(Placement)
        if values is None:
            return None
        known = {
            key: profile_from_dict(value) for key, value in values.pop("known_profiles").items()
        }
        return Placement(**{**values, "devices": tuple(values["devices"])}, known_profiles=known)

    def read_status(self) -> Status | None:
        """Read the training's latest report; None when absent."""
        values = self._read(Status)
        return None if values is None else Status(**values)

    def read_exit(self) -> Exit | None:
        """Read how the command ended; None while it runs."""
        values = self._read(Exit)
        return None if values is None else Exit(**values)

    def read_out_of_memory(self) -> OutOfMemory | None:
        """Read that it ran out of device memory; None when it said no such thing."""
        values = self._read(OutOfMemory) or {}
        # A training may write anything.
        message, key = values.get("message"), values.get("profile_key")
        if not isinstance(message, str):
            return None
        return OutOfMemory(message=message, profile_key=key if isinstance(key, str) else None)

    def read_stop(self) -> Stop | None:
        """Read that the worker is ending it; None when it is not."""
        values = self._read(Stop)
        return None if values is None else Stop(**values)

    def _file(self, kind: type) -> Path:
        return self.path / f"{kind.__name__.lower()}.json"

    def _read(self, kind: type[_T]) -> dict[str, Any] | None:
        try:
            values = json.loads(self._file(kind).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        known = {f.name for f in fields(kind)}
        return {name: value for name, value in values.items() if name in known}
