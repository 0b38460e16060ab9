"""What every policy must keep, whatever happens in the world around it.

Policies drive a little world: trainings ramp up from nothing to a peak that may lie above what was
declared or measured, other people's processes come and go, devices get lost and come back.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import building
from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.core.hosts import Host, HostResident
from xonar_prefect.core.models import (
    Device,
    Limits,
    Observation,
    Profile,
    Resident,
    Snapshot,
    Training,
)
from xonar_prefect.core.planning.hosting import need_of
from xonar_prefect.core.policies import POLICIES, Policy

MODELS = ("V100", "A100")
KINDS = ("cnn", "lm", "gan", "rl")
QUEUES = ("default", "urgent")
DEPLOYMENTS = (None, "d1", "d2")
SIZES = st.sampled_from([300, 700, 1200, None, 1, 2400, 5000])
TICK_S = 10.0


@dataclass
class Job:
    """A training of the world, with what the policy is not told."""

    training: Training
    ticks: int
    true_peak_mib: int
    attributed: bool
    age: int = 0
    devices: tuple[str, ...] = ()
    request_mib: int | None = None
    started_at_s: float = 0.0

    @property
    def true_use_mib(self) -> int:
        return self.true_peak_mib * self.age // self.ticks

    def resident(self) -> Resident:
        return Resident(
            training=self.training,
            devices=self.devices,
            request_mib=self.request_mib,
            used_mib=self.true_use_mib if self.attributed else 0,
            started_at_s=self.started_at_s,
            remaining_seconds=(self.ticks - self.age) * TICK_S,
        )


@dataclass
class World:
    """Devices, jobs, and other people's processes by tick and device."""

    devices: tuple[Device, ...]
    jobs: tuple[Job, ...]
    foreign_mib: tuple[tuple[int, ...], ...]
    lost: tuple[frozenset[int], ...]
    limits: Limits
    observations: tuple[Observation, ...]
    host: Host = field(default_factory=Host)
    durations: dict[tuple[str, str], float] = field(default_factory=dict)
    clashes: frozenset[tuple[str, str, str]] = frozenset()
    tick: int = 0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)
    refused: list[Job] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return self.tick * TICK_S

    def submit(self) -> None:
        arrived = [job for job in self.jobs if job.training.submitted_at_s == self.now_s]
        self.waiting += arrived

    def snapshot(self) -> Snapshot:
        foreign = self.foreign_mib[self.tick] if self.tick < len(self.foreign_mib) else None
        lost = self.lost[self.tick] if self.tick < len(self.lost) else frozenset()
        devices = []
        for number, device in enumerate(self.devices):
            here = [job for job in self.running if device.id in job.devices]
            used = sum(job.true_use_mib for job in here) + (foreign[number] if foreign else 0)
            devices.append(
                replace(
                    device,
                    residents=tuple(job.resident() for job in here),
                    used_mib=used,
                    unavailable="it fell off the bus" if number in lost else None,
                )
            )
        return Snapshot(
            now_s=self.now_s,
            held=tuple(job.training for job in self.waiting),
            devices=tuple(devices),
            observations=self.observations,
            limits=self.limits,
            host=self.host_now(),
            durations=self.durations,
            clashes=self.clashes,
        )

    def host_now(self) -> Host:
        """The host with who is on it; each uses half of what it is counted with."""
        residents = tuple(
            HostResident(
                training=job.training,
                used_memory_mib=need_of(job.training, self.host, self.limits).memory_mib // 2,
            )
            for job in self.running
        )
        used = self.host.used_memory_mib + sum(each.used_memory_mib for each in residents)
        return replace(self.host, used_memory_mib=used, residents=residents)

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Hold):
                continue
            # a second release of one training would find nobody here
            (job,) = (j for j in self.waiting if j.training.run_id == decision.training.run_id)
            self.waiting.remove(job)
            if isinstance(decision, Refuse):
                self.refused.append(job)
                continue
            job.devices, job.request_mib = decision.devices, decision.request_mib
            job.started_at_s = self.now_s
            self.running.append(job)

    def pass_time(self) -> None:
        self.tick += 1
        for job in tuple(self.running):
            job.age += 1
            if job.age >= job.ticks:
                self.running.remove(job)
                self.finished.append(job)


def profiles(draw: st.DrawFn, kind: str) -> dict[str, Profile]:
    known = draw(st.sets(st.sampled_from(MODELS)))
    return {
        model: Profile(
            key=kind,
            device_model=model,
            active_fraction=draw(st.sampled_from([0.3, 0.5, 0.8, 0.0, 1.0, None])),
            step_seconds=draw(st.sampled_from([None, 0.1, 0.4])),
            peak_memory_mib=draw(SIZES),
        )
        for model in sorted(known)
    }


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    kinds = {kind: profiles(draw, kind) for kind in KINDS}
    made = []
    for number in range(draw(st.sampled_from([8, 5, 12, 2, 1]))):
        kind = draw(st.sampled_from((*KINDS, None)))
        training = Training(
            run_id=f"run-{number:02}",
            name=f"training-{number}",
            submitted_at_s=draw(st.sampled_from([0, 0, 0, 1, 2, 4])) * TICK_S,
            gpus=draw(st.sampled_from([1, 1, 1, 1, 1, 0, 2, 2, 3])),
            priority=draw(st.integers(1, 2)),
            queue=draw(st.sampled_from(QUEUES)),
            deployment=draw(st.sampled_from(DEPLOYMENTS)),
            memory_request_mib=draw(SIZES),
            memory_elastic=draw(RARELY),
            host_memory_mib=draw(SIZES),
            cpu_threads=draw(st.sampled_from([None, None, 1, 4, 9])),
            shared_memory_mib=draw(st.sampled_from([None, None, None, 50, 300])),
            exclusive=draw(RARELY),
            profile_key=kind,
            profiles=kinds[kind] if kind else {},
            remaining_seconds=draw(st.none() | st.floats(0, 1000)),
            owner=draw(st.sampled_from([None, "ada", "eve"])),
            parameters={"model": f"{kind} 1"} if kind else {},
        )
        made.append(
            Job(
                training=training,
                ticks=draw(st.integers(1, 5)),
                # often more than was declared or measured
                true_peak_mib=draw(st.sampled_from([0, 400, 900, 1400, 2600])),
                attributed=draw(st.sampled_from([True, True, True, False])),
            )
        )
    return tuple(made)


HOST = Host(
    memory_mib=6000,
    used_memory_mib=500,
    headroom_mib=200,
    share_mib=700,
    cpu_threads=8,
    shared_memory_mib=400,
    used_shared_memory_mib=20,
)
RARELY = st.sampled_from([False] * 9 + [True])


def limits(draw: st.DrawFn) -> Limits:
    """Draw limits; most worlds have none, or nothing else would ever be seen to hold."""
    slots = st.sampled_from([None, None, None, 0, 1, 3])
    devices = Limits(
        max_trainings_per_gpu=draw(st.sampled_from([2, 3, 4, 1])),
        headroom_mib=draw(st.sampled_from([0, 100])),
        max_wait_seconds=draw(st.sampled_from([1e6, 20.0, 0.0])),
        observe_only=draw(st.sampled_from([False, False, False, True])),
    )
    if draw(st.sampled_from([False, False, True])):
        return replace(
            devices,
            free_slots=draw(slots),
            free_worker_slots=draw(slots),
            free_slots_by_queue=draw(st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 3))),
            free_slots_by_deployment=draw(
                st.dictionaries(st.sampled_from(DEPLOYMENTS[1:]), st.integers(0, 3))
            ),
            free_slots_without_device=draw(slots),
            pool_paused=draw(RARELY),
            paused_queues=draw(st.sampled_from([frozenset(), frozenset(QUEUES[:1])])),
        )
    return devices


@st.composite
def worlds(draw: st.DrawFn, *, limited: bool = True) -> World:
    count = draw(st.sampled_from([2, 3, 1, 4, 0] if limited else [2, 3, 1]))
    devices = tuple(
        Device(
            id=f"GPU-{draw(st.integers(0, 9))}{number}",
            index=number,
            model=draw(st.sampled_from(MODELS)),
            memory_mib=draw(st.sampled_from([3000, 5000])),
            reserved_mib=draw(st.sampled_from([0, 50])),
        )
        for number in range(count)
    )
    ticks = 8 if limited else 5
    foreign = st.tuples(*[st.sampled_from([0, 0, 200, 2500])] * count)
    lost = st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset({0})])
    seen = st.builds(
        Observation,
        device_model=st.sampled_from(MODELS),
        profile_key=st.sampled_from(KINDS),
        partner_keys=st.tuples(st.sampled_from(KINDS)),
        slowdown=st.floats(0.5, 5),
        steps=st.integers(1, 100),
    )
    return World(
        devices=devices,
        jobs=draw(jobs()),
        foreign_mib=tuple(draw(st.lists(foreign, min_size=ticks, max_size=ticks))),
        lost=tuple(draw(st.lists(lost, min_size=ticks, max_size=ticks))),
        host=draw(st.sampled_from([Host(), HOST])) if limited else Host(),
        limits=limits(draw)
        if limited
        else Limits(max_trainings_per_gpu=draw(st.integers(1, 3)), max_wait_seconds=50.0),
        observations=tuple(draw(st.lists(seen, max_size=5))),
        durations=draw(
            st.dictionaries(
                st.tuples(st.sampled_from(KINDS), st.sampled_from(MODELS)),
                st.floats(0, 1000),
                max_size=2,
            )
        ),
        clashes=draw(
            st.frozensets(st.sampled_from([("V100", "cnn", "lm"), ("A100", "gan", "gan")]))
        ),
    )


@st.composite
def crowded_snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a moment in which somebody has outgrown its request and the next is small."""
    requests = st.sampled_from([300, 600, 900])
    devices = []
    for number in range(draw(st.integers(1, 3))):
        device_id = f"GPU-{number}"
        residents = tuple(
            Resident(
                training=Training(
                    run_id=f"resident-{number}-{place}",
                    name=f"resident-{number}-{place}",
                    submitted_at_s=0.0,
                    memory_request_mib=draw(requests),
                    exclusive=draw(RARELY),
                ),
                devices=(device_id,),
                request_mib=draw(requests),
                used_mib=draw(st.sampled_from([0, 300, 600, 1200])),
            )
            for place in range(draw(st.integers(0, 2)))
        )
        used = sum(resident.used_mib for resident in residents)
        devices.append(
            Device(
                id=device_id,
                index=number,
                model="V100",
                memory_mib=draw(st.sampled_from([1200, 1800, 2100])),
                used_mib=used + draw(st.sampled_from([0, 0, 300])),
                residents=residents,
            )
        )
    held = tuple(
        Training(
            run_id=f"run-{number}",
            name=f"training-{number}",
            submitted_at_s=float(number),
            memory_request_mib=draw(requests),
            gpus=draw(st.sampled_from([1, 1, 1, 2])),
            exclusive=draw(RARELY),
        )
        for number in range(draw(st.integers(1, 4)))
    )
    most = draw(st.integers(1, 4))
    return Snapshot(
        now_s=10.0,
        held=held,
        devices=tuple(devices),
        limits=Limits(max_trainings_per_gpu=most),
    )


every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
quickly = settings(max_examples=50)


def check_decisions(before: Snapshot, decisions: tuple[Decision, ...]) -> None:
    """Check all that can be checked of one decision, by means of its own."""
    held = sorted(before.held, key=lambda t: (t.priority, t.submitted_at_s, t.run_id))
    assert [decision.training for decision in decisions] == held
    for decision in decisions:
        assert isinstance(decision.code, ReasonCode)
        assert decision.reason.endswith(".")
        assert not decision.reason.endswith("..")
        assert ". " not in decision.reason, "one sentence"
        assert "\n" not in decision.reason
        assert len(decision.alternatives) <= 5
    releases = [decision for decision in decisions if isinstance(decision, Release)]
    check_limits(before.limits, releases)
    check_devices(before, releases)
    check_host(before, releases)


def check_limits(limits: Limits, releases: list[Release]) -> None:
    trainings = [release.training for release in releases]
    if limits.pool_paused:
        assert not trainings
    assert not any(training.queue in limits.paused_queues for training in trainings)
    for most in (limits.free_slots, limits.free_worker_slots):
        assert most is None or len(trainings) <= most
    by_queue = Counter(training.queue for training in trainings)
    assert all(by_queue[queue] <= most for queue, most in limits.free_slots_by_queue.items())
    by_deployment = Counter(training.deployment for training in trainings)
    assert all(by_deployment[d] <= most for d, most in limits.free_slots_by_deployment.items())
    without = sum(training.gpus == 0 for training in trainings)
    most_without = limits.free_slots_without_device
    assert most_without is None or without <= most_without


def check_devices(before: Snapshot, releases: list[Release]) -> None:
    limits = before.limits
    most = 1 if limits.observe_only else limits.max_trainings_per_gpu
    devices = {device.id: device for device in before.devices}
    for release in releases:
        assert len(set(release.devices)) == len(release.devices) == release.training.gpus
        assert list(release.devices) == sorted(release.devices)
        assert len({devices[device].model for device in release.devices}) <= 1
        assert not any(devices[device].unavailable for device in release.devices)
        check_request(release, devices)
    for device in before.devices:
        new = [release for release in releases if device.id in release.devices]
        if not new:
            continue
        old = device.residents
        assert len(old) + len(new) <= most
        # memory: everything reserved, used by others and kept back is there
        whole = [r for r in (*old, *new) if r.request_mib is None]
        assert not whole or len(old) + len(new) == 1
        reserved = sum(max(r.request_mib or 0, r.used_mib) for r in old)
        reserved += sum(release.request_mib or 0 for release in new)
        foreign = max(0, device.used_mib - sum(r.used_mib for r in old))
        kept = device.reserved_mib + limits.headroom_mib
        assert reserved + foreign + kept <= device.memory_mib
        # partners: nobody beside an exclusive one, gangs only on identical sets
        if len(old) + len(new) > 1:
            trainings = [r.training for r in (*old, *new)]
            assert not any(training.exclusive for training in trainings)
            kinds = [t.profile_key for t in trainings if t.profile_key is not None]
            for one, other in itertools.combinations(sorted(kinds), 2):
                assert (device.model, one, other) not in before.clashes or not new
            sets = {frozenset(r.devices) for r in (*old, *new)}
            assert len(sets) == 1
            assert {run for release in new for run in release.partners} <= {
                training.run_id for training in trainings
            }


def check_host(before: Snapshot, releases: list[Release]) -> None:
    host, limits = before.host, before.limits
    if not releases or host == Host():
        return
    new = [need_of(release.training, host, limits) for release in releases]
    old = [need_of(each.training, host, limits) for each in host.residents]
    if host.memory_mib is not None:
        reserved = sum(
            max(need.memory_mib, each.used_memory_mib)
            for need, each in zip(old, host.residents, strict=True)
        )
        reserved += sum(need.memory_mib for need in new)
        taken = host.headroom_mib + host.foreign_memory_mib
        assert reserved + taken <= host.memory_mib
    for most, in_use, name in (
        (host.cpu_threads, 0, "cpu_threads"),
        (host.shared_memory_mib, host.used_shared_memory_mib, "shared_memory_mib"),
    ):
        wanted = sum(getattr(need, name) for need in new)
        if most is not None and wanted:
            assert wanted + in_use + sum(getattr(need, name) for need in old) <= most


def check_request(release: Release, devices: dict[str, Device]) -> None:
    """Check that no less is reserved than was declared or measured."""
    training = release.training
    for device in release.devices:
        profile = training.profiles.get(devices[device].model)
        measured = None if training.memory_elastic else profile and profile.peak_memory_mib
        known = [training.memory_request_mib, measured]
        least = max((mib for mib in known if mib is not None), default=None)
        if release.request_mib is not None:
            assert least is not None
            assert release.request_mib >= least


@every_policy
@quickly
@given(world=worlds())
def test_all_rules_are_kept_while_trainings_ramp_up_and_others_interfere(
    policy: Policy, world: World
) -> None:
    for _ in range(8):
        world.submit()
        before = world.snapshot()
        decisions = policy.decide(before)
        check_decisions(before, decisions)
        world.carry_out(decisions)
        everybody = Counter(
            job.training.run_id
            for group in (world.waiting, world.running, world.finished, world.refused)
            for job in group
        )
        submitted = [j for j in world.jobs if j.training.submitted_at_s <= world.now_s]
        assert everybody == Counter(job.training.run_id for job in submitted)
        world.pass_time()


@every_policy
@quickly
@given(before=crowded_snapshots())
def test_no_rule_is_broken_where_trainings_have_outgrown_their_requests(
    policy: Policy, before: Snapshot
) -> None:
    check_decisions(before, policy.decide(before))


@every_policy
@quickly
@given(world=worlds(limited=False))
def test_every_training_is_served_or_refused_once_the_world_is_quiet(
    policy: Policy, world: World
) -> None:
    # 12 trainings of at most 5 ticks, after 5 restless ones, one after the other in the worst case
    for _ in range(5 + 12 * 5 + 1):
        world.submit()
        world.carry_out(policy.decide(world.snapshot()))
        world.pass_time()
    assert not world.waiting
    assert len(world.finished) + len(world.refused) == len(world.jobs)


@every_policy
@quickly
@given(world=worlds(), shuffler=st.randoms(use_true_random=False))
def test_same_snapshot_same_decisions_in_whatever_order_it_lists_things(
    policy: Policy, world: World, shuffler: random.Random
) -> None:
    for _ in range(3):
        world.submit()
        before = world.snapshot()
        decisions = policy.decide(before)
        assert policy.decide(before) == decisions
        assert policy.decide(shuffled(before, shuffler)) == decisions
        world.carry_out(decisions)
        world.pass_time()


@every_policy
@quickly
@given(before=crowded_snapshots(), shuffler=st.randoms(use_true_random=False))
def test_same_decisions_in_whatever_order_residents_are_listed(
    policy: Policy, before: Snapshot, shuffler: random.Random
) -> None:
    assert policy.decide(shuffled(before, shuffler)) == policy.decide(before)


def shuffled(before: Snapshot, shuffler: random.Random) -> Snapshot:
    def mixed(values: tuple[object, ...]) -> list[object]:
        return shuffler.sample(values, len(values))

    devices = tuple(
        replace(device, residents=tuple(mixed(device.residents)))  # type: ignore[arg-type]
        for device in mixed(before.devices)  # type: ignore[type-var]
    )
    return replace(
        before,
        held=tuple(mixed(before.held)),  # type: ignore[arg-type]
        devices=devices,
        observations=tuple(mixed(before.observations)),  # type: ignore[arg-type]
    )


@every_policy
@quickly
@given(before=crowded_snapshots())
def test_nobody_submitted_later_comes_before_who_waited_too_long(
    policy: Policy, before: Snapshot
) -> None:
    # on one device, where nobody's end is known: nothing can be proved harmless
    impatient = replace(before.limits, max_wait_seconds=5.0)
    alone = replace(before, devices=before.devices[:1], limits=impatient)
    decisions = policy.decide(alone)
    overdue = [d.training for d in decisions if isinstance(d, Hold)]
    overdue = [training for training in overdue if alone.now_s - training.submitted_at_s > 5.0]
    for decision in decisions:
        if isinstance(decision, Release):
            assert not any(
                training.submitted_at_s < decision.training.submitted_at_s for training in overdue
            )


@every_policy
def test_an_empty_queue_needs_no_decision(policy: Policy) -> None:
    assert policy.decide(Snapshot(now_s=0.0, held=(), devices=())) == ()


@every_policy
def test_where_nobody_reads_why_the_same_is_released_and_refused(policy: Policy) -> None:
    held = [building.training(f"t{n}", float(n), active=0.1 * n, peak=6000) for n in range(6)]
    held.append(building.training("huge", 9.0, peak=99000))
    now = building.snapshot(held, [building.device(0), building.device(1)])

    def changes(snapshot: Snapshot) -> list[Decision]:
        decided = [each for each in policy.decide(snapshot) if not isinstance(each, Hold)]
        plain = [replace(each, alternatives=()) for each in decided]
        return sorted(plain, key=lambda each: each.training.run_id)

    assert changes(replace(now, explained=False)) == changes(now)
