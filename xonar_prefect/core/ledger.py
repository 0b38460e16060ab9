"""The life of a slot, as the worker writes it down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SlotState(str, Enum):
    """Where a training is in the life of its slot. Stored: never renamed."""

    RESERVED = "reserved"  # claimed; its full request counts; no process yet
    RUNNING = "running"  # its process was started
    DRAINING = "draining"  # its command has ended; processes or memory may be left
    VACATED = "vacated"  # process tree gone and memory back: its devices are free
    ENDED = "ended"  # its run is concluded, too


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
        pool: The work pool of that worker; None in entries of versions before this field.
        host: The host it runs on; None in entries of versions before this field.
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
        freed_at_s: When its devices were free again.
        concluded_at_s: When its run was concluded.
        co_runs: Its measured windows, alone and beside partners.
    """

    run_id: str
    name: str
    worker: str
    pool: str | None = None
    host: str | None = None
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
    freed_at_s: float | None = None
    concluded_at_s: float | None = None
    co_runs: tuple[CoRun, ...] = ()

    @property
    def holds_devices(self) -> bool:
        """Whether nobody else may have its part of its devices."""
        return self.state not in (SlotState.VACATED, SlotState.ENDED)

    @property
    def state_since_s(self) -> float:
        """When it came into its state; where that was not noted, the latest time that was."""
        since = {
            SlotState.RESERVED: self.reserved_at_s,
            SlotState.RUNNING: self.launched_at_s,
            SlotState.DRAINING: self.ended_at_s,
            SlotState.VACATED: self.freed_at_s,
            SlotState.ENDED: self.concluded_at_s,
        }[self.state]
        noted = (
            self.reserved_at_s,
            self.launched_at_s,
            self.ended_at_s,
            self.freed_at_s,
            self.concluded_at_s,
        )
        return since if since is not None else max(at for at in noted if at is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A step in the life of a slot; what stands here is never changed.

    Attributes:
        at_s: When it was taken.
        state: The state it led to.
        run_id: Id of the flow run.
        reserved_at_s: Its release: the key of its ledger entry together with `run_id`.
        worker: Name of the worker.
        pool: Its work pool.
        host: The host.
        devices: Ids of the devices.
        request_mib: Memory reserved on each of them; None for all of it.
        partners: Run ids that were on its devices when it was released.
        launcher_pid: Process id of the launcher; None before the launch.
        launcher_started_ticks: Start time of that process.
        boot_id: Boot of the host.
        exit_code: Exit code of its command, once it has ended.
    """

    at_s: float
    state: SlotState
    run_id: str
    reserved_at_s: float
    worker: str
    pool: str | None = None
    host: str | None = None
    devices: tuple[str, ...] = ()
    request_mib: int | None = None
    partners: tuple[str, ...] = ()
    launcher_pid: int | None = None
    launcher_started_ticks: int | None = None
    boot_id: str | None = None
    exit_code: int | None = None

    @classmethod
    def to_state_of(cls, entry: LedgerEntry) -> Transition:
        """Return the step that led to the entry's present state."""
        return cls(
            at_s=entry.state_since_s,
            state=entry.state,
            run_id=entry.run_id,
            reserved_at_s=entry.reserved_at_s,
            worker=entry.worker,
            pool=entry.pool,
            host=entry.host,
            devices=entry.devices,
            request_mib=entry.request_mib,
            partners=entry.partners,
            launcher_pid=entry.launcher_pid,
            launcher_started_ticks=entry.launcher_started_ticks,
            boot_id=entry.boot_id,
            exit_code=entry.exit_code,
        )
