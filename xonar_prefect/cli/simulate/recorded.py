"""What the store has recorded of runs: as a run to replay, and how long starting up took."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xonar_prefect.core.simulation.history import RecordedRun, usual_startup_seconds
from xonar_prefect.errors import StoreError

if TYPE_CHECKING:
    from xonar_prefect.core.ledger import LedgerEntry

_LATEST = 1000


@dataclass(frozen=True, slots=True)
class Startup:
    """How long a training has its devices for besides its steps, and where that is from.

    Attributes:
        seconds: That time.
        note: The same as a sentence; None where the user has said it.
    """

    seconds: float
    note: str | None = None


def measured_startup(models: Collection[str]) -> Startup:
    """Return the median of the latest trainings whose command ended well on these models.

    Where none did, or the store cannot be read, it is none, and the note says so. A store that was
    never written is not made.
    """
    nothing = "No time is counted for starting a training up: {}; --startup SECONDS does."
    on = ", ".join(sorted(models))
    try:
        known = [run for run in _ended_well(models) if run.startup_seconds is not None]
    except StoreError as error:
        return Startup(0.0, f"{nothing.format('what was measured cannot be read')} {error}")
    usual = usual_startup_seconds(known)
    if usual is None:
        return Startup(0.0, nothing.format(f"none was measured on {on}"))
    return Startup(
        usual,
        f"Starting up and ending takes {usual:.1f} s: the median of what {len(known)} trainings "
        f"on {on} that this store knows did besides their steps; --startup SECONDS counts another.",
    )


def _ended_well(models: Collection[str]) -> list[RecordedRun]:
    from xonar_prefect.settings import load_settings
    from xonar_prefect.store import Store

    settings = load_settings()
    if settings.store_url is None and not settings.store_path.exists():
        return []
    with Store.open(settings.effective_store_url) as store:
        entries = store.entries(limit=_LATEST)
    return [
        recorded_run(entry)
        for entry in entries
        if entry.devices and entry.device_model in models and entry.exit_code == 0
    ]


def recorded_run(
    entry: LedgerEntry, *, kind: str = "", submitted_at_s: float | None = None
) -> RecordedRun:
    """Return the run of a release as it really ran.

    Args:
        entry: The release.
        kind: What stands for its kind where that was never known.
        submitted_at_s: When it was submitted; None for when it was released.
    """
    from xonar_prefect.run_directory import RunDirectory

    status = RunDirectory(Path(entry.run_directory)).read_status()
    released_at_s = entry.reserved_at_s
    return RecordedRun(
        name=entry.name,
        kind=entry.profile_key or kind,
        device_model=entry.device_model,
        gpus=len(entry.devices),
        submitted_at_s=min(
            released_at_s, released_at_s if submitted_at_s is None else submitted_at_s
        ),
        released_at_s=released_at_s,
        ended_at_s=max(released_at_s, entry.ended_at_s or released_at_s),
        steps=status.steps_done if status else None,
        stepping_seconds=status.stepping_seconds if status else None,
        co_runs=entry.co_runs,
    )
