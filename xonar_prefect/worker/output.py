"""The output of trainings: followed to the worker's console, and its end for crash reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

_CHUNK_BYTES = 65_536


class OutputFollower:
    """Copies what trainings print to the console, line by line, with their names before it."""

    def __init__(self, console: TextIO = sys.stdout) -> None:
        self._console = console
        self._offsets: dict[Path, int] = {}

    def follow(self, path: Path, name: str) -> None:
        """Print the complete lines that were added since the last call."""
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read(_CHUNK_BYTES)
        except OSError:
            return
        complete = chunk.rfind(b"\n") + 1
        if complete == 0 and len(chunk) < _CHUNK_BYTES:
            return
        text = chunk[: complete or len(chunk)]
        self._offsets[path] = offset + len(text)
        for line in text.decode("utf-8", errors="replace").splitlines():
            self._console.write(f"{name} | {line}\n")
        self._console.flush()

    def forget(self, path: Path) -> None:
        """Stop following a file."""
        self._offsets.pop(path, None)


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
