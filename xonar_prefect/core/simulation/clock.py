"""The virtual clock: events in order of time, and a decision after each that changed something."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from xonar_prefect.core import memory
from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    Refuse,
    Release,
)
from xonar_prefect.core.models import Snapshot, Training
from xonar_prefect.core.policies.base import Policy
from xonar_prefect.core.simulation.cluster import Cluster
from xonar_prefect.core.simulation.learning import Knowledge
from xonar_prefect.core.simulation.result import Loss, Outcome, Run
from xonar_prefect.core.simulation.running import Running
from xonar_prefect.core.simulation.world import STARTING_UP, Learnt, Submission, World
from xonar_prefect.errors import SimulationStalledError

Watch = Callable[[Snapshot, "tuple[Decision, ...]"], None]

MOST_RELEASES = 3
"""How often a training is released that runs out of memory; the last time, alone."""
_SAME_MOMENT_S = 1e-9
"""Events so close together are one moment: what lies between them is rounding."""


def simulate(
    world: World,
    submissions: Iterable[Submission],
    policy: Policy,
    *,
    learnt: Learnt | None = None,
    clock: Callable[[], float] | None = None,
    watch: Watch | None = None,
    finished: Callable[[Outcome], None] | None = None,
) -> Run:
    """Run a queue to its end under a policy.

    The same arguments give the same result, but for the time that decisions take.

    Args:
        world: Where.
        submissions: What is submitted; of those submitted at once, earlier ones stand first.
        policy: What decides.
        learnt: What is known from earlier queues.
        clock: Tells the real time in seconds, to measure what decisions take.
        watch: Is told every snapshot with the decisions about it.
        finished: Is told every training that has completed.

    Raises:
        SimulationStalledError: Nothing runs any more, and the policy releases nothing.
    """
    return _Simulation(
        world, submissions, policy, learnt or Learnt(), clock=clock, watch=watch, finished=finished
    ).run()


class _Simulation:
    """One queue on its way."""

    def __init__(
        self,
        world: World,
        submissions: Iterable[Submission],
        policy: Policy,
        learnt: Learnt,
        *,
        clock: Callable[[], float] | None,
        watch: Watch | None,
        finished: Callable[[Outcome], None] | None,
    ) -> None:
        self._world = world
        self._policy = policy
        self._clock = clock
        self._watch = watch
        self._finished = finished
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_count = 0
        self._knowledge = Knowledge(world, learnt)
        self._cluster = Cluster(world, self._knowledge, self._set_alarm)
        self._submissions = tuple(submissions)
        self._held: dict[str, Training] = {}
        self._held_tuple: tuple[Training, ...] | None = None
        self._held_without_device = 0
        self._changed = False
        self._outcomes: dict[int, Outcome] = {}
        self._releases: dict[int, int] = {}
        self._refused: list[Refuse] = []
        self._failed: list[Submission] = []
        self._losses: list[Loss] = []
        self._decisions = 0
        self._decision_seconds = 0.0
        by_time = sorted(
            range(len(self._submissions)),
            key=lambda number: (self._submissions[number].submitted_at_s, number),
        )
        self._to_come = by_time[::-1]

    def run(self) -> Run:
        """Let everything happen, and return what became of it."""
        while (moment := self._next_moment()) is not None:
            self._now_s = moment
            self._happen()
            if self._changed and self._may_release:
                self._decide()
        if self._held:
            raise SimulationStalledError(self._policy.name, len(self._held), self._why_held())
        return Run(
            outcomes=tuple(self._outcomes[number] for number in sorted(self._outcomes)),
            refused=tuple(self._refused),
            failed=tuple(self._failed),
            losses=tuple(self._losses),
            decisions=self._decisions,
            decision_seconds=None if self._clock is None else self._decision_seconds,
            pairs=frozenset(self._cluster.pairs),
            learnt=self._knowledge.learnt(),
        )

    # Time

    def _next_moment(self) -> float | None:
        """Return when something happens next; None when nothing will."""
        moments = [self._events[0][0]] if self._events else []
        if self._to_come:
            moments.append(self._submissions[self._to_come[-1]].submitted_at_s)
        return min(moments, default=None)

    def _happen(self) -> None:
        """Let everything happen that is due."""
        while self._events and self._events[0][0] <= self._now_s + _SAME_MOMENT_S:
            _, _, happen = heapq.heappop(self._events)
            happen()
        while self._to_come and self._submissions[self._to_come[-1]].submitted_at_s <= self._now_s:
            self._submit(self._to_come.pop())

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (time_s, self._event_count, happen))

    def _set_alarm(self, running: Running) -> None:
        """Wake up when the next thing happens to a training; earlier alarms of it are void."""
        running.version += 1
        self._at(running.next_alarm(), partial(self._alarm, running, running.version))

    def _alarm(self, running: Running, version: int) -> None:
        if version != running.version:
            return
        if not running.ready:
            self._begin(running)
            return
        running.advance(self._now_s)
        if running.profile_at_s is not None:
            running.left_s, running.profile_at_s = running.profile_at_s, None
            self._profile(running.submission.kind, running.device_model)
            if running.left_s > 0:
                self._set_alarm(running)
                return
        self._finish(running)

    # What happens

    def _submit(self, number: int) -> None:
        submission = self._submissions[number]
        profiles = self._knowledge.profiles_of(submission.kind)
        self._hold(
            Training(
                run_id=f"{number:09d}",
                name=submission.name,
                submitted_at_s=submission.submitted_at_s,
                gpus=submission.gpus,
                priority=submission.priority,
                memory_request_mib=submission.memory_request_mib,
                profile_key=submission.kind,
                profiles=profiles,
                remaining_seconds=self._knowledge.foreseen_seconds(submission),
                owner=submission.owner,
                parameters={"training": submission.kind},
            )
        )

    def _hold(self, training: Training) -> None:
        self._held[training.run_id] = training
        self._held_tuple = None
        self._held_without_device += training.gpus == 0
        self._changed = True
        overdue_at_s = training.submitted_at_s + self._world.limits.max_wait_seconds
        if self._now_s < overdue_at_s < math.inf:
            # It is overdue when it has waited longer than that, be it by the smallest difference.
            moment = overdue_at_s * (1.0 + 1e-12) + 2 * _SAME_MOMENT_S
            self._at(moment, partial(self._overdue, training))

    def _overdue(self, training: Training) -> None:
        self._changed = self._changed or training.run_id in self._held

    def _begin(self, running: Running) -> None:
        running.advance(self._now_s)
        if self._cluster.runs_out_of_memory(running):
            self._lose(running)
            return
        kind, model = running.submission.kind, running.device_model
        if not self._knowledge.is_profiled(kind, model):
            steps_s = self._world.profiling_steps * running.step_seconds
            running.profile_at_s = max(0.0, running.left_s - steps_s)
        self._cluster.begin(running, self._now_s)

    def _finish(self, running: Running) -> None:
        outcome = Outcome(
            submission=running.submission,
            devices=running.devices,
            started_at_s=running.started_at_s,
            finished_at_s=self._now_s,
            partners=tuple(sorted(running.partners)),
        )
        self._outcomes[int(running.training.run_id)] = outcome
        if self._finished is not None:
            self._finished(outcome)
        self._leave(running)
        self._knowledge.finish(running.submission, running.device_model)

    def _lose(self, running: Running) -> None:
        """Run out of memory: the newcomer ends and is held again; its partners run on."""
        submission = running.submission
        self._losses.append(
            Loss(
                submission=submission,
                devices=running.devices,
                started_at_s=running.started_at_s,
                ended_at_s=self._now_s,
            )
        )
        partners = [mate.submission.kind for mate in running.mates if mate.ready]
        self._leave(running)
        self._knowledge.clash(submission.kind, partners, running.device_model)
        releases = self._releases[int(running.training.run_id)]
        if releases >= MOST_RELEASES:
            self._failed.append(submission)
            return
        alone = releases == MOST_RELEASES - 1
        self._hold(replace(running.training, exclusive=running.training.exclusive or alone))

    def _leave(self, running: Running) -> None:
        running.version += 1
        self._cluster.leave(running, self._now_s)
        self._changed = True

    def _profile(self, kind: str, device_model: str) -> None:
        """Make a settled profile known, of all that waits and runs."""
        self._knowledge.profile(kind, device_model)
        profiles = self._knowledge.profiles_of(kind)
        for run_id, held in self._held.items():
            if held.profile_key == kind:
                seconds = self._knowledge.foreseen_seconds(self._submissions[int(run_id)])
                self._held[run_id] = replace(held, profiles=profiles, remaining_seconds=seconds)
        self._held_tuple = None
        for running in self._cluster.running.values():
            if running.submission.kind == kind:
                running.training = replace(running.training, profiles=profiles)
                running.request_mib = running.request_mib or self._request_of(running)
                running.forget_view()
        self._changed = True

    def _request_of(self, running: Running) -> int | None:
        """Return what is reserved for a training that had the whole device until now."""
        limits = self._world.limits
        needs = [
            memory.need_on(running.training, slots.device, limits).mib for slots in running.slots
        ]
        known = [mib for mib in needs if mib is not None]
        return max(known) if known and len(known) == len(needs) else None

    # Decisions

    @property
    def _may_release(self) -> bool:
        """Whether there is anything to release, and a slot to release it to."""
        return bool(self._held and (self._cluster.free_slots > 0 or self._held_without_device > 0))

    def _snapshot(self, *, explained: bool) -> Snapshot:
        if self._held_tuple is None:
            self._held_tuple = tuple(self._held.values())
        return Snapshot(
            now_s=self._now_s,
            held=self._held_tuple,
            devices=self._cluster.views(self._now_s),
            observations=self._knowledge.observations(self._now_s),
            limits=self._world.limits,
            profiles=self._knowledge.profiles,
            durations=self._knowledge.mean_durations,
            clashes=self._knowledge.clashes,
            interference=self._knowledge.interference,
            startup_seconds=self._world.startup_seconds,
            explained=explained,
        )

    def _decide(self) -> None:
        self._changed = False
        snapshot = self._snapshot(explained=self._watch is not None)
        begin = 0.0 if self._clock is None else self._clock()
        decisions = self._policy.decide(snapshot)
        if self._clock is not None:
            self._decision_seconds += self._clock() - begin
        self._decisions += 1
        if self._watch is not None:
            self._watch(snapshot, decisions)
        for decision in decisions:
            if isinstance(decision, Release):
                self._release(decision)
            elif isinstance(decision, Refuse):
                self._take(decision.training)
                self._refused.append(decision)

    def _take(self, training: Training) -> None:
        del self._held[training.run_id]
        self._held_tuple = None
        self._held_without_device -= training.gpus == 0

    def _release(self, decision: Release) -> None:
        training = decision.training
        self._take(training)
        number = int(training.run_id)
        submission = self._submissions[number]
        slots = tuple(self._cluster.slots[device] for device in decision.devices)
        model = slots[0].device.model if slots else ""
        startup_s = submission.startup_seconds
        running = Running(
            submission,
            training,
            slots,
            request_mib=decision.request_mib,
            step_seconds=self._world.step_seconds(submission.kind, model),
            startup_s=self._world.startup_seconds if startup_s is None else startup_s,
            startup_kind=STARTING_UP if self._world.startup_uses_device else None,
            left_s=submission.solo_seconds * self._world.relative_seconds(submission.kind, model),
            now_s=self._now_s,
        )
        self._releases[number] = self._releases.get(number, 0) + 1
        self._cluster.join(running, self._now_s)

    def _why_held(self) -> str:
        decisions = self._policy.decide(self._snapshot(explained=True))
        return next(each.reason for each in decisions if isinstance(each, Hold))
