"""What `adaptive` chooses, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.building import (
    MODEL,
    device,
    hold,
    observation,
    release,
    released,
    resident,
    snapshot,
    training,
)
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Profile, Training
from xonar_prefect.core.policies import POLICIES

ADAPTIVE = POLICIES["adaptive"]


def job(name: str, seconds: float | None, submitted: float = 0.0, **values: object) -> Training:
    values = {"active": 0.5, "peak": 1000, **values}
    return training(name, submitted, remaining_seconds=seconds, **values)  # type: ignore[arg-type]


def test_the_shortest_comes_first_on_an_empty_device() -> None:
    held = [job("long", 1000.0, active=1.0), job("short", 10.0, 1, active=1.0)]
    decisions = ADAPTIVE.decide(snapshot(held, [device()], max_trainings_per_gpu=1))
    assert released(decisions) == {"short": ("GPU-0",)}
    chosen = release(decisions, "short")
    assert chosen.code is ReasonCode.LEAST_COMPLETION_TIME
    assert "the expected sum of completion times is 1020 s, against 2010 s with 'long'" in (
        chosen.reason
    )
    assert hold(decisions, "long").code is ReasonCode.BETTER_PARTNER_CHOSEN
    assert "leaves the expected sum of completion times at 1020 s" in hold(decisions, "long").reason


def test_the_partner_that_interferes_least_comes_first_among_equals() -> None:
    held = [job("busy", 100.0, active=0.9), job("idle", 100.0, 1, active=0.1)]
    there = resident(job("there", 100.0, active=0.9), 2000)
    decisions = ADAPTIVE.decide(snapshot(held, [device(0, there)]))
    assert released(decisions) == {"idle": ("GPU-0",)}


def test_nobody_joins_where_sharing_only_delays() -> None:
    there = resident(job("there", 100.0, active=1.0), 2000)
    decisions = ADAPTIVE.decide(snapshot([job("next", 100.0, active=1.0)], [device(0, there)]))
    assert released(decisions) == {}
    held = hold(decisions, "next")
    assert held.code is ReasonCode.BETTER_ALONE
    assert held.reason.startswith("'there' on GPU 0 better stays alone for now: ")
    assert "is then 300 s, with 'next' there 420 s" in held.reason


def test_a_minute_may_be_shared_at_a_loss_beside_ten_hours() -> None:
    there = resident(job("there", 36000.0, active=1.0), 2000)
    decisions = ADAPTIVE.decide(snapshot([job("minute", 60.0, active=1.0)], [device(0, there)]))
    assert released(decisions) == {"minute": ("GPU-0",)}


def test_where_no_time_is_known_a_gain_below_one_decides() -> None:
    for active, joins in ((1.0, False), (0.5, True)):
        there = resident(job("there", None, active=active), 2000)
        held = [job("next", None, active=active)]
        decisions = ADAPTIVE.decide(snapshot(held, [device(0, there)]))
        assert bool(released(decisions)) is joins


def test_a_pair_that_turned_out_harmful_is_not_repeated() -> None:
    there = resident(job("a", 300.0, active=0.3), 2000)
    held = [job("b", 300.0, active=0.3), job("c", 320.0, active=0.3)]
    fresh = snapshot(held, [device(0, there)])
    assert list(released(ADAPTIVE.decide(fresh))) == ["b"]
    seen = (
        observation("a", "b", slowdown=3.0),
        observation("b", "a", slowdown=3.0),
        observation("a", "c", slowdown=1.1),
        observation("c", "a", slowdown=1.1),
    )
    decisions = ADAPTIVE.decide(replace(fresh, observations=seen))
    assert list(released(decisions)) == ["c"]


def test_a_clash_is_never_repeated() -> None:
    there = resident(job("a", 300.0), 2000)
    taken = snapshot([job("b", 10.0)], [device(0, there)])
    decisions = ADAPTIVE.decide(replace(taken, clashes=frozenset({(MODEL, "a", "b")})))
    assert hold(decisions, "b").code is ReasonCode.KNOWN_TO_CLASH
    assert "ran out of memory" in hold(decisions, "b").reason


def test_an_unprofiled_short_one_has_the_device_kept_free_for_it() -> None:
    there = resident(job("there", 20.0, active=0.9), 2000)
    new = training("new", 0, remaining_seconds=30.0)
    siblings = [training(f"new{i}", i, key="new", remaining_seconds=30.0) for i in range(1, 6)]
    long = job("long", 5000.0, active=0.9)
    decisions = ADAPTIVE.decide(snapshot([new, *siblings, long], [device(0, there)]))
    assert released(decisions) == {}
    assert hold(decisions, "long").code is ReasonCode.DEVICE_KEPT_FREE
    assert "is kept free beside 'there' for 'new'" in hold(decisions, "long").reason


def test_among_equals_the_first_comes_first_whatever_its_kind() -> None:
    held = [training(name, n, key=name[0]) for n, name in enumerate(["a1", "b1", "a2", "b2"])]
    few = snapshot(held, [device(0), device(1)], max_trainings_per_gpu=1)
    assert released(ADAPTIVE.decide(few)) == {"a1": ("GPU-0",), "b1": ("GPU-1",)}


def test_a_kind_that_is_being_profiled_leaves_an_empty_device_to_another() -> None:
    there = resident(training("a0", key="a"), None)
    held = [training(name, n, key=name[0]) for n, name in enumerate(["a1", "a2", "a3", "b1"])]
    decisions = ADAPTIVE.decide(snapshot(held, [device(0, there), device(1)]))
    assert released(decisions) == {"b1": ("GPU-1",)}


def test_a_higher_priority_comes_first_whatever_it_costs() -> None:
    held = [job("urgent", 1000.0, 1, priority=1), job("cheap", 1.0, 0, priority=2)]
    decisions = ADAPTIVE.decide(snapshot(held, [device()], max_trainings_per_gpu=1))
    assert released(decisions) == {"urgent": ("GPU-0",)}


def test_a_sweep_of_forty_does_not_starve_five_others() -> None:
    sweep = [job(f"s{i}", 60.0, i, key="sweep", owner="eve") for i in range(40)]
    others = [job(f"o{i}", 600.0, 100 + i, owner=f"owner-{i}") for i in range(5)]
    devices = [device(index) for index in range(5)]
    decisions = ADAPTIVE.decide(snapshot([*sweep, *others], devices, max_trainings_per_gpu=1))
    assert set(released(decisions)) == {f"o{i}" for i in range(5)}


def test_among_its_own_an_owner_is_served_shortest_first() -> None:
    held = [job("long", 600.0, 0, owner="eve"), job("short", 60.0, 1, owner="eve")]
    decisions = ADAPTIVE.decide(snapshot(held, [device()], max_trainings_per_gpu=1))
    assert list(released(decisions)) == ["short"]


def test_of_one_kind_the_shortest_comes_first_and_the_others_are_told() -> None:
    held = [job("a", 90.0, 0, key="k"), job("b", 30.0, 1, key="k")]
    decisions = ADAPTIVE.decide(snapshot(held, [device()], max_trainings_per_gpu=1))
    assert list(released(decisions)) == ["b"]
    assert hold(decisions, "a").reason == (
        "'b', of the same kind, has less left to do, so it comes first on GPU 0."
    )


def test_the_best_of_several_places_is_taken() -> None:
    busy = [resident(job(f"r{i}", 500.0, active=a), 2000, on=[i]) for i, a in enumerate((0.9, 0.1))]
    devices = [device(0, busy[0]), device(1, busy[1])]
    decisions = ADAPTIVE.decide(snapshot([job("next", 100.0, active=0.8)], devices))
    assert released(decisions) == {"next": ("GPU-1",)}


def test_three_share_where_that_is_allowed_and_pays() -> None:
    held = [job(name, 100.0, active=0.1) for name in "abc"]
    decisions = ADAPTIVE.decide(snapshot(held, [device()], max_trainings_per_gpu=3))
    assert len(released(decisions)) == 3


def test_a_gang_takes_empty_devices_together() -> None:
    gang = job("gang", 10.0, gpus=2)
    decisions = ADAPTIVE.decide(snapshot([gang, job("one", 500.0)], [device(0), device(1)]))
    assert release(decisions, "gang").devices == ("GPU-0", "GPU-1")


def test_a_gang_joins_a_gang_whose_devices_are_open_to_nobody_else() -> None:
    there = resident(job("there", 1000.0, active=0.1, gpus=4), 2000, on=range(4))
    held = [job("gang", 1000.0, active=0.1, gpus=4), *(job(f"one {n}", 500.0) for n in range(9))]
    decisions = ADAPTIVE.decide(snapshot(held, [device(n, there) for n in range(4)]))
    assert set(released(decisions)) == {"gang"}


def test_no_slot_is_kept_from_the_overdue_for_better_partners() -> None:
    there = resident(job("there", 100.0, active=0.5), 2000)
    better = [job(f"small {n}", 30.0, 900.0, active=0.05) for n in range(9)]
    overdue = job("overdue", 1000.0, active=0.5)
    now = snapshot([overdue, *better], [device(0, there)], now=1000, max_wait_seconds=500)
    assert list(released(ADAPTIVE.decide(now))) == ["overdue"]


def test_never_active_trainings_share_freely() -> None:
    there = resident(job("there", 100.0, active=0.0), 2000)
    decisions = ADAPTIVE.decide(snapshot([job("next", 100.0, active=1.0)], [device(0, there)]))
    assert list(released(decisions)) == ["next"]


def test_alternatives_are_ranked_with_their_arithmetic() -> None:
    there = resident(job("there", 100.0), 2000)
    held = [job(name, 100.0 + 10 * i, i) for i, name in enumerate("abc")]
    chosen = release(ADAPTIVE.decide(snapshot(held, [device(0, there)])), "a")
    names = [alternative.candidate for alternative in chosen.alternatives]
    assert set(names) == {"b", "c", "alone"}
    assert all("the expected sum of completion times" in a.reason for a in chosen.alternatives)
    assert [a.predicted_slowdown for a in chosen.alternatives if a.candidate == "b"] == [
        pytest.approx(1.275)
    ]


def test_who_is_faster_by_more_gets_the_faster_model() -> None:
    def on_both(name: str, slow: float, fast: float) -> Training:
        profiles = {
            model: Profile(
                key=name,
                device_model=model,
                step_seconds=step,
                peak_memory_mib=1000,
                active_fraction=1.0,
            )
            for model, step in (("K80", slow), ("V100", fast))
        }
        return replace(job(name, 100.0), profiles=profiles)

    devices = [device(0, model="K80"), device(1, model="V100")]
    held = [on_both("indifferent", 1.1, 1.0), on_both("choosy", 5.0, 1.0)]
    decisions = ADAPTIVE.decide(snapshot(held, devices, max_trainings_per_gpu=1))
    assert released(decisions) == {"choosy": ("GPU-1",), "indifferent": ("GPU-0",)}
