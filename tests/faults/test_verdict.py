"""Every rule of the verdict finds what it is there to find, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.api import State
from tests.faults.diary import Diary, Plan
from tests.faults.journal import Event
from tests.faults.phases import Phase
from tests.faults.verdict import Evidence, hits, violations
from xonar_prefect.core.ledger import LedgerEntry, SlotState

COMPLETED = State("COMPLETED", "Completed", "")
RUNNING = State("RUNNING", "Running", "")
CANCELLED = State("CANCELLED", "Cancelled", "")
EXIT_3 = State("CRASHED", "Crashed", "The command ended with exit code 3.")
KILLED = State("CRASHED", "Crashed", "It was ended by signal 9 (SIGKILL).")

Build = Callable[..., Evidence]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build the evidence of one blameless training, with changes."""

    def build(
        *states: State,
        deeds: str = "started begun worked ended",
        plan: Plan = Plan(name="one"),  # noqa: B008 - frozen
        events: tuple[Event, ...] = (),
        releases: int = 1,
        slot: SlotState = SlotState.ENDED,
        left: dict[str, list[int]] | None = None,
        requeues: int = 0,
    ) -> Evidence:
        path = tmp_path / "diary.jsonl"
        lines = [
            json.dumps({"at_s": 10.0 + at, "run": "run", "event": deed, "pid": 1})
            for at, deed in enumerate(deeds.split())
        ]
        path.write_text("".join(f"{line}\n" for line in lines))
        diary = Diary(path)
        diary.read_on()
        entry = LedgerEntry(
            run_id="run", name="one", worker="w", state=slot, run_directory="/r", reserved_at_s=9.0
        )
        return Evidence(
            plans={"run": plan},
            histories={"run": states or (RUNNING, COMPLETED)},
            diary=diary,
            releases={"run": [replace(entry, reserved_at_s=9.0 + n) for n in range(releases)]},
            events=events,
            left=left or {},
            requeues=requeues,
        )

    return build


def event(kind: str, at_s: float = 0.0, **facts: Any) -> Event:
    return Event(at_s, kind, {"run": "run", **facts})


def blow(fault: str, *victims: str) -> Event:
    return event("struck", fault=fault, phase="run", victims=victims or ("run",))


FAILS = Plan(name="one", exit_code=3)


def test_a_blameless_trial_has_no_violations(build: Build) -> None:
    assert violations(build()) == []
    assert violations(build(EXIT_3, deeds="started begun failed", plan=FAILS)) == []


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"states": [RUNNING]}, "one is Running"),
        ({"deeds": "started begun started begun worked", "releases": 2}, "one has begun 2 times"),
        ({"deeds": "started begun worked worked"}, "one has worked 2 times"),
        (
            {"deeds": "started begun started begun worked", "releases": 2, "requeues": 1},
            "one has begun 2 times",
        ),
        (
            {
                "deeds": "started begun worked ended started begun worked ended",
                "releases": 2,
                "requeues": 1,
                "events": (blow("training killed"),),
            },
            "one has ended 2 times",
        ),
        (
            {
                "states": [KILLED],
                "deeds": "started begun",
                "requeues": 1,
                "events": (blow("training killed"),),
            },
            "one was ended by nothing and is Crashed",
        ),
        ({"deeds": "started started begun worked"}, "was started 2 times and released 1 times"),
        ({"slot": SlotState.DRAINING}, "the slot of one is draining"),
        ({"left": {"/r": [7]}}, "/r has processes [7]"),
        ({"events": (event("excess", device="cpu-0"),)}, "'device': 'cpu-0'"),
        ({"events": (event("standstill", waits_for=None),)}, "waits_for"),
        ({"deeds": "started begun"}, "one is not Completed"),
        ({"states": [EXIT_3]}, "one is not Crashed"),
        ({"states": [EXIT_3], "deeds": "started", "plan": FAILS}, "one is not Crashed"),
        ({"states": [KILLED], "deeds": "started begun"}, "one is not Crashed"),
        ({"states": [CANCELLED], "deeds": ""}, "one is not Cancelled"),
        (
            {
                "states": [KILLED],
                "deeds": "started begun",
                "events": (blow("training killed", "another"),),
            },
            "one is not Crashed",
        ),
        (
            {"states": [KILLED, RUNNING, COMPLETED], "events": (blow("training killed"),)},
            "one has had several endings",
        ),
        (
            {"events": (event("cancelled", at_s=8.0, became="Cancelled"),)},
            "one began after it had been cancelled",
        ),
    ],
)
def test_each_rule_finds_its_violation(build: Build, case: dict[str, Any], sentence: str) -> None:
    found = violations(build(*case.pop("states", ()), **case))
    assert any(sentence in violation for violation in found), found


@pytest.mark.parametrize(
    "case",
    [
        {
            "states": [KILLED],
            "deeds": "started begun",
            "events": (blow("training killed"),),
        },
        {
            "states": [RUNNING, COMPLETED],
            "deeds": "started begun started begun worked ended",
            "releases": 2,
            "requeues": 1,
            "events": (blow("training killed"),),
        },
        {"states": [CANCELLED], "deeds": "", "events": (event("cancelling"),)},
        {  # cancelled after its release, it had finished before anybody could stop it
            "states": [CANCELLED, RUNNING, COMPLETED],
            "events": (event("cancelling"), event("cancelled", at_s=9.5, became="Cancelled")),
        },
    ],
)
def test_what_has_a_reason_is_no_violation(build: Build, case: dict[str, Any]) -> None:
    assert violations(build(*case.pop("states"), **case)) == []


def test_hits_are_counted_by_phase(build: Build) -> None:
    counted = hits(build(events=(blow("server killed"), blow("store locked"))))
    assert counted == {Phase.CLAIM: 0, Phase.LAUNCH: 0, Phase.RUN: 2, Phase.DRAIN: 0}
