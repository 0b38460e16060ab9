"""What must hold after every trial, whatever was broken; each rule is a sentence and a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.api import State
from tests.faults.diary import Diary, Plan
from tests.faults.journal import Event
from tests.faults.phases import Phase
from xonar_prefect.core.ledger import LedgerEntry, SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known after a trial.

    Attributes:
        plans: What each training was told to do, by run id.
        histories: All states of each run, oldest first; the last is the present one.
        diary: What the trainings did.
        releases: What the ledgers say of each run.
        events: What happened around them.
        left: Processes of trainings that are still there, by run directory.
        requeues: How often a training may be started again that was killed.
    """

    plans: Mapping[str, Plan]
    histories: Mapping[str, Sequence[State]]
    diary: Diary
    releases: Mapping[str, Sequence[LedgerEntry]]
    events: Sequence[Event]
    left: Mapping[str, Sequence[int]]
    requeues: int = 0

    def strikes(self) -> list[Event]:
        """Return the faults that struck."""
        return [event for event in self.events if event.kind == "struck"]

    def blows(self, run_id: str) -> list[str]:
        """Return the names of the faults that hit this training's own processes."""
        return [
            event.facts["fault"] for event in self.strikes() if run_id in event.facts["victims"]
        ]

    def was_cancelled(self, run_id: str) -> bool:
        """Tell whether somebody tried to cancel the run."""
        return any(
            event.kind == "cancelling" and event.facts["run"] == run_id for event in self.events
        )

    def did(self, run_id: str, deed: str) -> bool:
        """Tell whether the training wrote this into its diary."""
        return self.diary.count(run_id, deed) > 0


Rule = Callable[[Evidence], Iterator[str]]


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """Every run is in a final state."""
    for run_id, plan in evidence.plans.items():
        history = evidence.histories.get(run_id, ())
        if not history or not history[-1].is_final:
            yield f"{plan.name} is {history[-1].name if history else 'gone'}"


def nothing_runs_twice(evidence: Evidence) -> Iterator[str]:
    """No training completes twice, or begins or works again unless it was killed and requeued."""
    for run_id, plan in evidence.plans.items():
        again = min(evidence.requeues, len(evidence.blows(run_id)))
        for deed, most in (("begun", 1 + again), ("worked", 1 + again), ("ended", 1)):
            count = evidence.diary.count(run_id, deed)
            if count > most:
                yield f"{plan.name} has {deed} {count} times"


def nothing_starts_unwritten(evidence: Evidence) -> Iterator[str]:
    """Every process that was started has a release in a ledger."""
    for run_id, plan in evidence.plans.items():
        started = evidence.diary.count(run_id, "started")
        written = len(evidence.releases.get(run_id, ()))
        if started > written:
            yield f"{plan.name} was started {started} times and released {written} times"


def every_slot_is_free(evidence: Evidence) -> Iterator[str]:
    """No release is open in a ledger."""
    for releases in evidence.releases.values():
        for entry in releases:
            if entry.state is not SlotState.ENDED:
                yield f"the slot of {entry.name} is {entry.state.value}"


def nobody_is_left(evidence: Evidence) -> Iterator[str]:
    """No process of a training outlives the trial."""
    for run_directory, pids in evidence.left.items():
        yield f"{run_directory} has processes {list(pids)}"


def nothing_is_over_capacity(evidence: Evidence) -> Iterator[str]:
    """Neither reservations nor living trainings ever exceeded a device."""
    for event in evidence.events:
        if event.kind == "excess":
            yield f"at {event.at_s}: {dict(event.facts)}"


def nothing_stood_still(evidence: Evidence) -> Iterator[str]:
    """The trial came to its end by itself."""
    for event in evidence.events:
        if event.kind == "standstill":
            yield f"{dict(event.facts)}"


def nothing_cancelled_is_revived(evidence: Evidence) -> Iterator[str]:
    """What was cancelled is not released any more."""
    for event in evidence.events:
        if event.kind != "cancelled" or event.facts["became"] != "Cancelled":
            continue
        run_id = event.facts["run"]
        for entry in evidence.diary.of(run_id):
            reserved_at = [
                release.reserved_at_s
                for release in evidence.releases.get(run_id, ())
                if release.reserved_at_s <= entry.at_s
            ]
            if entry.event == "begun" and max(reserved_at, default=0.0) > event.at_s:
                yield f"{evidence.plans[run_id].name} began after it had been cancelled"


def every_ending_is_true(evidence: Evidence) -> Iterator[str]:
    """Each run ended as what it was, its message says so, and it was never called otherwise."""
    for run_id, plan in evidence.plans.items():
        endings = [state for state in evidence.histories.get(run_id, ()) if state.is_final]
        for ending in endings:
            if not _is_true(evidence, run_id, ending):
                yield f"{plan.name} is not {ending.name}: {ending.message!r}"
        others = {ending.type for ending in endings} - {"CANCELLED"}
        if len(others) > 1:
            yield f"{plan.name} has had several endings: {[state.name for state in endings]}"
        spared = len(evidence.blows(run_id)) <= evidence.requeues
        innocent = spared and not evidence.was_cancelled(run_id)
        expected = "CRASHED" if plan.exit_code else "COMPLETED"
        if endings and innocent and endings[-1].type != expected:
            yield f"{plan.name} was ended by nothing and is {endings[-1].name}"


_ALL_AT_ONCE = frozenset({"training killed with its launcher", "host restarted"})
_BLOWS_BY_SENTENCE = {
    "signal 9 (SIGKILL)": _ALL_AT_ONCE | {"training killed"},
    "disappeared without an exit code": _ALL_AT_ONCE | {"launcher killed"},
}


def _is_true(evidence: Evidence, run_id: str, ending: State) -> bool:
    if ending.type == "COMPLETED":
        return evidence.did(run_id, "worked")
    if ending.type == "CANCELLED":
        return evidence.was_cancelled(run_id)
    if ending.type != "CRASHED":
        return False
    if f"exit code {evidence.plans[run_id].exit_code}" in ending.message:
        return evidence.did(run_id, "failed")
    return any(
        sentence in ending.message and blows.intersection(evidence.blows(run_id))
        for sentence, blows in _BLOWS_BY_SENTENCE.items()
    )


RULES: tuple[Rule, ...] = (
    nothing_stood_still,
    nothing_is_lost,
    nothing_runs_twice,
    nothing_starts_unwritten,
    every_slot_is_free,
    nobody_is_left,
    nothing_is_over_capacity,
    nothing_cancelled_is_revived,
    every_ending_is_true,
)


def violations(evidence: Evidence) -> list[str]:
    """Return every violation of every rule, as sentences."""
    return [f"{rule.__doc__} But {case}." for rule in RULES for case in rule(evidence)]


def assert_no_violation(evidence: Evidence) -> None:
    """Fail with every violation as a line of its own."""
    found = violations(evidence)
    assert not found, "\n".join(found)


def hits(evidence: Evidence) -> dict[Phase, int]:
    """Return how many faults struck in each phase."""
    counts = Counter(event.facts["phase"] for event in evidence.strikes())
    return {phase: counts[phase.value] for phase in Phase}


def table(evidence: Evidence) -> str:
    """Return which fault struck in which phase how often, as a table of text."""
    counts = Counter((event.facts["fault"], event.facts["phase"]) for event in evidence.strikes())
    names = sorted({name for name, _ in counts})
    width = max(map(len, names), default=0)
    head = f"{'':{width}}" + "".join(f"{phase.value:>8}" for phase in Phase)
    rows = [
        f"{name:{width}}" + "".join(f"{counts[name, phase.value] or '':>8}" for phase in Phase)
        for name in names
    ]
    total = f"{'':{width}}" + "".join(f"{count:>8}" for count in hits(evidence).values())
    return "\n".join([head, *rows, total])
