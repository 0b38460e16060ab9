from __future__ import annotations

import pytest

from tests.core.building import device, released, resident, snapshot, training
from xonar_prefect.core.models import Training
from xonar_prefect.core.planning.kinds import HeldQueue
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]


@pytest.mark.parametrize(
    "blocked",
    [
        training("first", 0, request=100, key="k", exclusive=True),
        training("first", 0, request=15001, key="k"),
        training("first", 0, request=100, key="k", queue="paused"),
        training("first", 0, request=100, key="k", deployment="full"),
        training("first", 0, request=100, key="k", gpus=2),
        training("first", 0, key="k"),
        training("first", 0, request=100, key="k", peak=15000),
    ],
    ids=["exclusive", "request", "queue", "deployment", "gang", "unprofiled", "peak"],
)
def test_who_may_not_start_blocks_nobody_behind_it(blocked: Training) -> None:
    held = [blocked, training("second", 1, request=100, key="k")]
    devices = [device(0, resident("r", 1000)), device(1, resident("x", 15500), memory=16000)]
    decisions = PARALLEL.decide(
        snapshot(
            held,
            devices,
            paused_queues=frozenset({"paused"}),
            free_slots_by_deployment={"full": 0},
        )
    )
    assert list(released(decisions)) == ["second"]


def test_trainings_of_one_kind_are_weighed_once() -> None:
    held = [training(name, i, request=100, key="k") for i, name in enumerate("abc")]
    queue = HeldQueue(held)
    assert [front.name for _, front in queue] == ["a"]


def test_the_next_of_a_kind_takes_its_own_position() -> None:
    held = [
        training("a1", 0, request=100, key="a"),
        training("b1", 1, request=100, key="b"),
        training("a2", 2, request=100, key="a"),
    ]
    queue = HeldQueue(held)
    queue.take(queue.kind_of(held[0]))
    assert [front.name for _, front in queue] == ["b1", "a2"]
    queue.take(queue.kind_of(held[2]))
    assert [front.name for _, front in queue] == ["b1"]


def test_one_may_be_taken_from_the_middle_of_its_kind() -> None:
    held = [
        training(name, i, request=100, key="k", remaining_seconds=seconds)
        for i, (name, seconds) in enumerate((("a", 30.0), ("b", 10.0), ("c", None)))
    ]
    queue = HeldQueue(held)
    kind = queue.kind_of(held[0])
    assert kind.by_length == [held[1], held[0], held[2]]
    queue.take(kind, held[1])
    assert kind.front is held[0]
    assert kind.held == [held[0], held[2]]
    queue.take(kind)
    assert kind.front is held[2]
    assert kind.count == 1
    queue.take(kind)
    assert list(queue) == []
    assert kind.front is None


def test_owners_and_profiles_tell_kinds_apart() -> None:
    held = [
        training("a", 0, key="k", active=0.0),
        training("b", 1, key="k"),
        training("c", 2, key="k", active=0.0),
        training("d", 3, key="k", owner="ada"),
    ]
    queue = HeldQueue(held)
    assert [front.name for _, front in queue] == ["a", "b", "d"]
    assert queue.kind_of(held[2]) is queue.kind_of(held[0])
