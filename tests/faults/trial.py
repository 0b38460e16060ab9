"""A trial: trainings are submitted, faults strike in chosen phases, everything is written down."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from tests.faults.capacity import Occupancy
from tests.faults.cluster import Cluster, Worker
from tests.faults.diary import Plan
from tests.faults.faults import FAULTS, Fault, Target
from tests.faults.phases import Phase, phase_of
from xonar_prefect.core.ledger import LedgerEntry

_AT_ONCE = 12  # trainings that are submitted and not finished
_ASK_SECONDS = 0.5
_WATCHFUL_SECONDS = 0.005
_IDLE_SECONDS = 0.1
_STANDSTILL_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault, and the phase of a training's life in which it is to strike."""

    fault: Fault
    phase: Phase


def strikes(dice: random.Random, count: int) -> list[Strike]:
    """Return so many strikes: all phases alike, all faults of a phase alike, in random order."""
    chosen: list[Strike] = []
    while len(chosen) < count:
        for phase in dice.sample(list(Phase), len(Phase)):
            fitting = [fault for fault in FAULTS if phase in fault.phases]
            seen = [strike.fault for strike in chosen]
            rarest = min(seen.count(fault) for fault in fitting)
            fault = dice.choice([fault for fault in fitting if seen.count(fault) == rarest])
            chosen.append(Strike(fault, phase))
    return dice.sample(chosen[:count], count)


@dataclass(slots=True)
class _Broken:
    strike: Strike
    target: Target
    until: float


@dataclass(slots=True)
class Trial:
    """One trial of a cluster.

    Attributes:
        cluster: What is on trial.
        plans: The trainings; those beyond `trainings` only give late strikes something to hit.
        trainings: How many there are at least.
        strikes: The faults; spread evenly over the trainings.
        cancels: How many trainings are cancelled at a random moment.
        dice: Who chooses.
        occupancy: Who looks for devices with more on them than they hold.
        submitted: The trainings that were submitted, by run id.
    """

    cluster: Cluster
    plans: Sequence[Plan]
    trainings: int
    strikes: Sequence[Strike]
    cancels: int
    dice: random.Random
    occupancy: Occupancy
    submitted: dict[str, Plan] = field(default_factory=dict)
    _struck: int = 0
    _cancelled: set[str] = field(default_factory=set)
    _unfinished: frozenset[str] = frozenset()
    _asked_at: float = 0.0
    _broken: list[_Broken] = field(default_factory=list)

    def run(self) -> None:
        """Have it all happen; ends when everything is finished or nothing moves any more."""
        moved_at = time.monotonic()
        seen = ""
        while not self._is_over():
            with contextlib.suppress(httpx.HTTPError):  # the server is away, because of us
                self._ask()
            self._mend()
            self.cluster.keep_up()
            self.cluster.diary.read_on()
            entries = {worker: worker.open_entries() for worker in self.cluster.workers}
            self.occupancy.look(entries, self.cluster.diary)
            due = self._due()
            hit = due is not None and self._strike(due, entries)
            now = time.monotonic()
            state = f"{self._struck} {sorted(self._unfinished)} {len(self.submitted)}"
            if state != seen:
                seen, moved_at = state, now
            elif now - moved_at > _STANDSTILL_SECONDS:
                self.cluster.journal.note("standstill", waits_for=due, unfinished=self._unfinished)
                break
            time.sleep(_WATCHFUL_SECONDS if due is not None and not hit else _IDLE_SECONDS)
        self._mend(all_of_it=True)

    def _has_more(self) -> bool:
        """A strike may fall due when the last trainings are past its phase: more come for it."""
        wanted = self.trainings if self._struck == len(self.strikes) else len(self.plans)
        return len(self.submitted) < wanted

    def _is_over(self) -> bool:
        return (
            not self._has_more()
            and not self._unfinished
            and not self._broken
            and not any(worker.open_entries() for worker in self.cluster.workers)
        )

    def _ask(self) -> None:
        """Read what is finished, submit more, and cancel now and then."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS:
            return
        self._asked_at = now
        api = self.cluster.api
        self._unfinished = api.unfinished()
        while len(self._unfinished) < _AT_ONCE and self._has_more():
            plan = self.plans[len(self.submitted)]
            run_id = api.submit(
                self.cluster.deployment,
                plan.name,
                command=plan.command(self.cluster.diary.path),
                memory_request_mib=plan.memory_request_mib,
            )
            self.submitted[run_id] = plan
            self._unfinished |= {run_id}
        done = len(self.submitted) - len(self._unfinished)
        if self._unfinished and len(self._cancelled) < self.cancels * done / self.trainings:
            run_id = self.dice.choice(sorted(self._unfinished))
            self._cancelled.add(run_id)
            # Noted before, too: the answer may be lost.
            self.cluster.journal.note("cancelling", run=run_id)
            state = api.cancel(run_id)
            self.cluster.journal.note("cancelled", run=run_id, became=state and state.name)

    def _due(self) -> Strike | None:
        """Return the next strike, when enough is done and what it breaks is whole."""
        if self._struck == len(self.strikes):
            return None
        done = len(self.submitted) - len(self._unfinished)
        if done < self._struck * self.trainings / (len(self.strikes) + 1):
            return None
        return self.strikes[self._struck]

    def _strike(self, strike: Strike, entries: dict[Worker, tuple[LedgerEntry, ...]]) -> bool:
        """Strike where a training is in the wanted phase; return whether it was hit."""
        cluster = self.cluster
        for worker, target in self._targets(strike, entries):
            life = worker.life
            if life is None or not life.alive or life.stopped:
                continue
            life.freeze()
            # Nothing moves on now: is it in that phase still?
            cluster.diary.read_on()
            present = [e for e in worker.open_entries() if e.run_id == target.entry.run_id]
            if not present or phase_of(present[0], cluster.diary) is not strike.phase:
                life.thaw()
                continue
            self._do(strike, Target(worker, present[0]))
            return True
        return False

    def _targets(
        self, strike: Strike, entries: dict[Worker, tuple[LedgerEntry, ...]]
    ) -> Iterator[tuple[Worker, Target]]:
        broken = {each.strike.fault.thing(each.target) for each in self._broken}
        for worker in self.dice.sample(self.cluster.workers, len(self.cluster.workers)):
            for entry in entries[worker]:
                target = Target(worker, entry)
                if strike.fault.thing(target) in broken or worker.name in broken:
                    continue
                if phase_of(entry, self.cluster.diary) is strike.phase:
                    yield worker, target

    def _do(self, strike: Strike, target: Target) -> None:
        cluster, fault = self.cluster, strike.fault
        seconds = self.dice.uniform(0.0, fault.seconds)
        cluster.journal.note(
            "struck",
            fault=fault.name,
            phase=strike.phase.value,
            run=target.entry.run_id,
            training=target.entry.name,
            worker=target.worker.name,
            slot=target.entry.state.value,
            victims=fault.victims(target),
            seconds=round(seconds, 2),
        )
        fault.strike(cluster, target)
        self._struck += 1
        self._broken.append(_Broken(strike, target, time.monotonic() + seconds))
        if not fault.leaves_frozen and target.worker.life is not None:
            target.worker.life.thaw()

    def _mend(self, *, all_of_it: bool = False) -> None:
        for broken in list(self._broken):
            if all_of_it or time.monotonic() >= broken.until:
                self._broken.remove(broken)
                broken.strike.fault.mend(self.cluster, broken.target)
                self.cluster.journal.note("mended", fault=broken.strike.fault.name)
