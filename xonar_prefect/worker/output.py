"""The output of trainings: followed to the worker's console, and its end for crash reports."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TextIO

_CHUNK_BYTES = 65_536
# A training that prints without end must not keep the worker from its other work.
_CHUNKS_AT_ONCE = 16


class OutputFollower:
    """Copies what trainings print to the console, line by line, with their names before it.

    Args:
        console: Where to; standard output by default. When it is gone, nothing is printed.
    """

    def __init__(self, console: TextIO | None = None) -> None:
        self._console = console
        self._offsets: dict[Path, int] = {}

    def skip(self, path: Path) -> None:
        """Follow a file from its present end: what is there was printed by an earlier worker."""
        with contextlib.suppress(OSError):
            self._offsets[path] = path.stat().st_size

    def follow(self, path: Path, name: str) -> None:
        """Print the complete lines that were added since the last call."""
        self._copy(path, name, last=False)

    def finish(self, path: Path, name: str) -> None:
        """Print what is left, a line without an end too, and stop following the file."""
        self._copy(path, name, last=True)
        self._offsets.pop(path, None)

    def _copy(self, path: Path, name: str, *, last: bool) -> None:
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                for _ in range(_CHUNKS_AT_ONCE):
                    file.seek(offset)
                    chunk = file.read(_CHUNK_BYTES)
                    complete = chunk.rfind(b"\n") + 1
                    if not complete and (last or len(chunk) == _CHUNK_BYTES):
                        complete = len(chunk)
                    if not complete:
                        break
                    self._print(name, chunk[:complete])
                    offset += complete
        except OSError:
            return
        finally:
            self._offsets[path] = offset

    def _print(self, name: str, text: bytes) -> None:
        console = self._console or sys.stdout
        with contextlib.suppress(OSError, ValueError):
            for line in text.decode("utf-8", errors="replace").splitlines():
                console.write(f"{name} | {line}\n")
            console.flush()


def last_lines(path: Path, count: int = 50) -> str:
    """Return the last lines of a file; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _CHUNK_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
