"""Looks, again and again, whether more is on a device than it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.faults.diary import Diary, Entry
from tests.faults.journal import Journal
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.worker.processes import started_ticks


class Occupancy:
    """Adds up what ledgers have reserved, and what living trainings were given.

    Args:
        journal: Where every excess is noted.
        memory_mib: A device's memory.
        trainings: How many trainings may share a device.
    """

    def __init__(self, journal: Journal, *, memory_mib: int, trainings: int) -> None:
        self._journal = journal
        self._memory_mib = memory_mib
        self._trainings = trainings
        self._ticks: dict[int, int | None] = {}
        self.highest_mib = 0
        self.most_trainings = 0

    def look(self, entries: Mapping[object, Sequence[LedgerEntry]], diary: Diary) -> None:
        """Look once at the open entries of every ledger and at living processes."""
        reserved: dict[str, list[int]] = defaultdict(list)
        for ledger in entries.values():
            for entry in ledger:
                # What has ended stays open until the server was told, which may take minutes.
                for device in entry.devices if entry.holds_devices else ():
                    reserved[device].append(entry.request_mib or self._memory_mib)
        self._judge("reserved", reserved)
        living: dict[str, list[int]] = defaultdict(list)
        for run_id in diary.runs():
            # A run that was requeued has several lives, each on devices of its own.
            lives: dict[int, list[Entry]] = defaultdict(list)
            for note in diary.of(run_id):
                lives[note.pid].append(note)
            for pid, notes in lives.items():
                left = {note.facts["left_pid"] for note in notes if "left_pid" in note.facts}
                alive = [each for each in (pid, *left) if self._lives(each)]  # each is looked at
                for device in notes[0].facts["devices"] if alive else ():
                    living[device].append(int(notes[0].facts["request_mib"]))
        self._judge("living", living)

    def _judge(self, what: str, requests_by_device: Mapping[str, Sequence[int]]) -> None:
        for device, requests in requests_by_device.items():
            self.highest_mib = max(self.highest_mib, sum(requests))
            self.most_trainings = max(self.most_trainings, len(requests))
            if sum(requests) > self._memory_mib or len(requests) > self._trainings:
                self._journal.note("excess", what=what, device=device, requests_mib=requests)

    def _lives(self, pid: int) -> bool:
        ticks = started_ticks(pid)
        # Once gone, its number may be somebody else's.
        first = self._ticks.setdefault(pid, ticks)
        return ticks is not None and ticks == first
