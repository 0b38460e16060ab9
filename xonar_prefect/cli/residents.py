"""Trainings on this host's devices, from the ledger and their run directories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xonar_prefect.cli.output import UNKNOWN
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.run_directory import RunDirectory, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """A training that holds devices of this host.

    Attributes:
        entry: Its release.
        status: Its latest report; None before the first.
        partners: Names of those that share a device with it now.
        predicted_slowdown: What is predicted for it beside them; None alone or where unknown.
    """

    entry: LedgerEntry
    status: Status | None
    partners: tuple[str, ...]
    predicted_slowdown: float | None

    @property
    def steps(self) -> str:
        """Its progress for people."""
        if self.status is None:
            return UNKNOWN
        total = self.status.steps_total
        done = str(self.status.steps_done) if total is None else f"{self.status.steps_done}/{total}"
        return done if self.status.phase == "training" else f"{done} {self.status.phase}"

    def slot_as_json(self) -> dict[str, Any]:
        """Return the slot that it holds as JSON values."""
        entry = self.entry
        return {
            "state": entry.state.value,
            "reason": entry.reason or None,
            "since_s": entry.state_since_s,
            "run_id": entry.run_id,
            "name": entry.name,
            "request_mib": entry.request_mib,
            "partners": list(self.partners),
            "worker": entry.worker,
            "host": entry.host,
            "pid": entry.launcher_pid,
            "started_ticks": entry.launcher_started_ticks,
            "boot_id": entry.boot_id,
        }

    def as_json(self) -> dict[str, Any]:
        """Return its figures as JSON values; unknown is None."""
        status = self.status
        return {
            "run_id": self.entry.run_id,
            "name": self.entry.name,
            "slot": self.entry.state.value,
            "devices": list(self.entry.devices),
            "partners": list(self.partners),
            "request_mib": self.entry.request_mib,
            "predicted_slowdown": self.predicted_slowdown,
            "phase": None if status is None else status.phase,
            "steps_done": None if status is None else status.steps_done,
            "steps_total": None if status is None else status.steps_total,
            "peak_memory_mib": None if status is None else status.peak_memory_mib,
        }


def local_trainings(open_entries: Iterable[LedgerEntry]) -> tuple[LocalTraining, ...]:
    """Return the trainings of these releases, in the order of release."""
    entries = sorted(open_entries, key=lambda entry: (entry.reserved_at_s, entry.run_id))
    return tuple(_local(entry, entries) for entry in entries)


def _local(entry: LedgerEntry, entries: Iterable[LedgerEntry]) -> LocalTraining:
    partners = [
        other
        for other in entries
        if other is not entry and other.holds_devices and set(other.devices) & set(entry.devices)
    ]
    return LocalTraining(
        entry=entry,
        status=RunDirectory(Path(entry.run_directory)).read_status(),
        partners=tuple(partner.name for partner in partners),
        predicted_slowdown=_predicted(entry, tuple(sorted(each.run_id for each in partners))),
    )


def _predicted(entry: LedgerEntry, partners: tuple[str, ...]) -> float | None:
    """Return what is predicted beside these partners, whoever of them came later."""
    if not partners:
        return None
    for window in entry.co_runs:
        if window.partners == partners:
            return window.predicted_slowdown
    return entry.predicted_slowdown if partners == tuple(sorted(entry.partners)) else None
