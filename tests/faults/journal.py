"""What happened during a trial, with times: the evidence that its verdict rests on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, seconds since the epoch."""

    at_s: float
    kind: str
    facts: Mapping[str, Any]


class Journal:
    """Keeps events in order, in memory and line by line in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []

    def note(self, kind: str, **facts: Any) -> None:
        """Write an event down."""
        event = Event(time.time(), kind, facts)
        self.events.append(event)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at_s": event.at_s, "kind": kind, **facts}, default=str) + "\n")

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event.kind == kind]
