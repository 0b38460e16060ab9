"""Notices a training that asks for device memory in vain, again and again, and never ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xonar_prefect.core.out_of_memory import says_out_of_memory

MOST_COMPLAINTS = 20
LEAST_SECONDS = 60.0
_CHUNK_BYTES = 1_048_576


@dataclass(slots=True)
class _Complaints:
    offset: int
    steps_done: int = 0
    count: int = 0
    first_at_s: float = 0.0
    last: str = ""


class MemoryComplaints:
    """Counts what trainings print about missing memory since their last step.

    Frameworks complain and go on with less; a training that does steps is therefore left alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Path, _Complaints] = {}

    def forget(self, output: Path) -> None:
        """Its training has ended."""
        self._seen.pop(output, None)

    def endless(self, output: Path, steps_done: int) -> str | None:
        """Read what was printed since the last look.

        Args:
            output: The training's output.
            steps_done: Steps it has finished so far.

        Returns:
            Its latest complaint, when it has complained too often and for too long without a
            step; otherwise None.
        """
        seen = self._seen.get(output)
        if seen is None:
            seen = self._seen[output] = _Complaints(offset=0)
        if steps_done != seen.steps_done:
            seen.steps_done, seen.count = steps_done, 0
        complained = False
        for line in self._new_lines(output, seen):
            if says_out_of_memory(line):
                complained = True
                seen.first_at_s = seen.first_at_s if seen.count else self._clock()
                seen.count += 1
                seen.last = line.strip()
        long_enough = self._clock() - seen.first_at_s >= LEAST_SECONDS
        # Only a fresh complaint tells that it still asks.
        return seen.last if complained and seen.count >= MOST_COMPLAINTS and long_enough else None

    @staticmethod
    def _new_lines(output: Path, seen: _Complaints) -> list[str]:
        try:
            with output.open("rb") as file:
                file.seek(seen.offset)
                chunk = file.read(_CHUNK_BYTES)
        except OSError:
            return []
        complete = chunk.rfind(b"\n") + 1
        if not complete and len(chunk) == _CHUNK_BYTES:
            complete = len(chunk)
        seen.offset += complete
        return chunk[:complete].decode("utf-8", errors="replace").splitlines()
