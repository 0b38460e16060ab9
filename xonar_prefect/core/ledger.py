"""The life of a slot, as the worker writes it down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SlotState(str, Enum):
    """Where a training is in the life of its slot. Stored: never renamed."""

    RESERVED = "reserved"  # claimed; its full request counts; no process yet
    RUNNING = "running"  # its process was started
    DRAINING = "draining"  # its command has ended; processes or memory may be left
    ENDED = "ended"  # process tree gone and memory back: the slot is free


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """What a training's steps cost while its set of partners stayed the same.

    Attributes:
        partners: Run ids of the partners, sorted; empty for a window alone.
        partner_keys: Their profile keys, in the same order; empty text where unknown.
        steps: Steps the training finished in the window.
        seconds: Sum of the durations of those steps.
        predicted_slowdown: What was predicted for it beside these partners.
    """

    partners: tuple[str, ...] = ()
    partner_keys: tuple[str, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    predicted_slowdown: float | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean step time in the window; None before the first step."""
        return self.seconds / self.steps if self.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One release of one training by one worker.

    Attributes:
        run_id: Id of the flow run.
        name: Its name, for people.
        worker: Name of the worker that released it.
        state: Where it is in the life of its slot.
        devices: Ids of its devices.
        device_model: Their model.
        request_mib: Memory reserved on each device; None for all of it.
        profile_key: Its kind, where known.
        partners: Run ids that were on its devices when it was released.
        code: Reason code of the release.
        reason: The same as a sentence.
        predicted_slowdown: Predicted at release.
        run_directory: Path of its run directory.
        launcher_pid: Process id of the launcher; None before the launch.
        launcher_started_ticks: Start time of that process (field 22 of /proc/PID/stat), since
            process ids are used again.
        boot_id: Boot of the host it was launched in.
        reserved_at_s: When it was claimed.
        launched_at_s: When its process was started.
        ended_at_s: When its command ended.
        exit_code: Exit code of its command; negative for a signal; None when unknown.
        co_runs: Its measured windows, alone and beside partners.
    """

    run_id: str
    name: str
    worker: str
    state: SlotState
    devices: tuple[str, ...] = ()
    device_model: str = "none"
    request_mib: int | None = None
    profile_key: str | None = None
    partners: tuple[str, ...] = ()
    code: str = ""
    reason: str = ""
    predicted_slowdown: float | None = None
    run_directory: str
    launcher_pid: int | None = None
    launcher_started_ticks: int | None = None
    boot_id: str | None = None
    reserved_at_s: float
    launched_at_s: float | None = None
    ended_at_s: float | None = None
    exit_code: int | None = None
    co_runs: tuple[CoRun, ...] = ()
