"""Reads the diaries of trainings, and plans which trainings there are."""

from __future__ import annotations

import json
import random
import shlex
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("training.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a training is told to do.

    Attributes:
        name: Its name.
        seconds: How long it works.
        exit_code: Its exit code; not zero for one that fails.
        leave: It leaves a `"child"` behind, or a `"stubborn"` one that ignores SIGTERM.
        deaf: It ignores SIGTERM itself.
        memory_request_mib: What it asks for.
    """

    name: str
    seconds: float = 0.5
    exit_code: int = 0
    leave: str = ""
    deaf: bool = False
    memory_request_mib: int = 100

    def command(self, diary: Path) -> str:
        """Return its command."""
        options = {"seconds": f"{self.seconds:.2f}", "exit": str(self.exit_code)}
        options |= {"leave": self.leave} if self.leave else {}
        options |= {"deaf": "1"} if self.deaf else {}
        return shlex.join(
            [sys.executable, "-S", str(_PROGRAM), str(diary)]
            + [f"{name}={value}" for name, value in options.items()]
        )


def mixed_plans(dice: random.Random, count: int, memory_mib: int) -> list[Plan]:
    """Return trainings that succeed, fail, leave processes behind or ignore signals.

    Args:
        dice: Who chooses.
        count: How many.
        memory_mib: A device's memory: they ask for a tenth to nine twentieths of it.
    """
    return [
        Plan(
            name=f"training-{number}",
            seconds=dice.uniform(0.2, 1.6),
            exit_code=dice.choices((0, 3), (9, 1))[0],
            leave=dice.choices(("", "child", "stubborn"), (12, 2, 1))[0],
            deaf=dice.random() < 0.1,
            memory_request_mib=int(memory_mib * dice.uniform(0.1, 0.45)),
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a diary."""

    at_s: float
    event: str
    pid: int
    facts: dict[str, Any] = field(default_factory=dict)


class Diary:
    """What the trainings wrote, by run id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._runs: dict[str, list[Entry]] = defaultdict(list)

    def read_on(self) -> None:
        """Take in what was added."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        complete = added.rfind(b"\n") + 1
        self._offset += complete
        for line in added[:complete].splitlines():
            facts = json.loads(line)
            entry = Entry(facts.pop("at_s"), facts.pop("event"), facts.pop("pid"), facts)
            self._runs[facts["run"]].append(entry)

    def of(self, run_id: str) -> Sequence[Entry]:
        """Return a run's entries in the order they were written."""
        return self._runs.get(run_id, ())

    def runs(self) -> frozenset[str]:
        """Return the runs that have written anything."""
        return frozenset(self._runs)

    def count(self, run_id: str, event: str) -> int:
        """Return how often a run did something."""
        return sum(1 for entry in self.of(run_id) if entry.event == event)
