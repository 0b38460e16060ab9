"""Run directories of ended runs: which are old, and their removal, one at a time."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import psutil

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.store import Store
from xonar_prefect.worker.processes import ProcessTrees

# As `Slots.reserve` names them: the run, and when it was released.
_NAME = re.compile(r"(?P<run>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(?P<ms>\d{1,15})")

_logger = logging.getLogger(__name__)

Unfinished = Callable[[Collection[str]], Awaitable[frozenset[str]]]
"""Return which of these runs have not ended, by their ids."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    run_id: str
    released_at_s: float


class OldRunDirectories:
    """Removes run directories some time after their runs have ended.

    What is not named like a run directory, and what is a link, is left alone. Links and mounts in
    a run directory are not followed.

    Args:
        runs: Where the run directories are.
        store: With the ledger, which says when a run ended.
        unfinished: Asks the server.
        clock: The time.
        keep_seconds: How long they are kept.
    """

    def __init__(
        self,
        runs: Path,
        store: Store,
        unfinished: Unfinished,
        *,
        clock: Callable[[], float],
        keep_seconds: float,
    ) -> None:
        self._runs = runs
        self._store = store
        self._unfinished = unfinished
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._left: deque[_Found] = deque()

    async def step(self) -> bool:
        """Look at one directory, or for directories; return whether there is more to do.

        Raises:
            StoreError: The ledger cannot be read.
            httpx.HTTPError: The server cannot be asked.
        """
        if not self._left:
            self._left.extend(await anyio.to_thread.run_sync(self._old))
            return bool(self._left)
        found = self._left.popleft()
        if await anyio.to_thread.run_sync(self._is_over, found) and not await self._unfinished(
            [found.run_id]
        ):
            await anyio.to_thread.run_sync(_remove, found.path)
        return bool(self._left)

    @property
    def _before_s(self) -> float:
        return self._clock() - self._keep_seconds

    def _old(self) -> list[_Found]:
        """Return what was released long enough ago that it may have ended long enough ago."""
        try:
            entries = list(os.scandir(self._runs))
        except OSError:  # none yet, or the home is away
            return []
        found = []
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or not _is_directory(entry):
                continue
            released_at_s = int(match["ms"]) / 1000
            if released_at_s < self._before_s:
                found.append(_Found(Path(entry.path), match["run"], released_at_s))
        return sorted(found, key=lambda each: each.released_at_s)

    def _is_over(self, found: _Found) -> bool:
        """Tell whether the run that had this directory ended long ago, with all its processes."""
        ended_at_s = None
        for entry in self._store.entries(run_id=found.run_id):
            if Path(entry.run_directory).name != found.path.name:
                continue
            if entry.state is not SlotState.ENDED:
                return False
            ended_at_s = entry.ended_at_s or entry.reserved_at_s
        if ended_at_s is None:  # the ledger was lost, or has forgotten it
            ended_at_s = _exit_time(found.path) or found.released_at_s
        if ended_at_s >= self._before_s:
            return False
        living = {Path(directory).name for directory in ProcessTrees().scan()}
        return found.path.name not in living


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _exit_time(path: Path) -> float | None:
    try:
        ended = RunDirectory(path).read_exit()
    except (OSError, TypeError, ValueError, AttributeError):  # whatever stands there
        return None
    return ended.ended_at_s if ended and isinstance(ended.ended_at_s, int | float) else None


def _remove(path: Path) -> None:
    mounts = [
        part.mountpoint
        for part in psutil.disk_partitions(all=True)
        if Path(part.mountpoint).is_relative_to(path.resolve())
    ]
    if mounts:
        _logger.warning(
            "The run directory %s is kept, as something is mounted in it at %s; unmount that.",
            path,
            mounts[0],
        )
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _logger.warning(
            "The run directory %s could not be removed altogether; see who owns what is left.",
            path,
        )
