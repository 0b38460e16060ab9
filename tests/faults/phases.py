"""Where a training is in the life of its slot, as the ledger, its files and its diary tell."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from tests.faults.diary import Diary
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory


class Phase(str, Enum):
    """The moments in which a fault may strike."""

    CLAIM = "claim"  # reserved, and nothing of it started yet
    LAUNCH = "launch"  # its processes are being started; it has not begun
    RUN = "run"  # it trains
    DRAIN = "drain"  # its command has ended; its run is not concluded yet


def phase_of(entry: LedgerEntry, diary: Diary) -> Phase | None:
    """Return the phase of a release; None when its slot is free."""
    directory = RunDirectory(Path(entry.run_directory))
    if entry.state is SlotState.ENDED:
        return None
    if entry.state in (SlotState.DRAINING, SlotState.VACATED) or directory.exit_file.exists():
        return Phase.DRAIN
    if entry.state is SlotState.RESERVED and not directory.path.exists():
        return Phase.CLAIM
    return Phase.RUN if diary.count(entry.run_id, "begun") else Phase.LAUNCH
