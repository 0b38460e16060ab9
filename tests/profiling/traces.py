"""Builds traces as TensorFlow writes them, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xonar_prefect.profiling.recording import Mark
from xonar_prefect.profiling.xplane import space_class

_PICOSECONDS = 10**9
HOST = "/host:CPU"


class TraceBuilder:
    """A trace under construction."""

    def __init__(self) -> None:
        self.space = space_class()()

    def plane(self, name: str) -> Plane:
        """Add a plane."""
        plane = self.space.planes.add()
        plane.name = name
        return Plane(plane)

    def bytes(self) -> bytes:
        """Return the trace as it would lie on disk."""
        return bytes(self.space.SerializeToString())


class Plane:
    """One plane of a trace."""

    def __init__(self, plane: Any) -> None:
        self._plane = plane
        self._names: dict[str, int] = {}

    def line(
        self, name: str, events: Sequence[tuple[str, float, float]], starts_at_ms: float = 0.0
    ) -> Plane:
        """Add a line of events: name, begin and end."""
        line = self._plane.lines.add()
        line.name = name
        line.timestamp_ns = round(starts_at_ms * 10**6)
        for event_name, begin, end in events:
            self._event(line, event_name, begin - starts_at_ms, end - begin)
        return self

    def steps(self, windows: Sequence[tuple[float, float]]) -> Plane:
        """Mark steps: begin and end."""
        return self.line("python", [(Mark.STEP.value, begin, end) for begin, end in windows])

    def _event(self, line: Any, name: str, offset_ms: float, duration_ms: float) -> Any:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            entry = self._plane.event_metadata.add()
            entry.key = entry.value.id = self._names[name]
            entry.value.name = name
        event = line.events.add()
        event.metadata_id = self._names[name]
        event.offset_ps = round(offset_ms * _PICOSECONDS)
        event.duration_ps = round(duration_ms * _PICOSECONDS)
        return event
