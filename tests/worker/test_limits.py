"""Prefect's limits as rules of a decision, between two readings too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.models import Limits
from xonar_prefect.worker.limits import Occupant, PrefectLimits


def occupant(run_id: str, queue: str = "default", deployment: str | None = "d") -> Occupant:
    return Occupant(run_id=run_id, queue=queue, deployment=deployment)


def rules(limits: PrefectLimits, *running: Occupant, ended: tuple[Occupant, ...] = ()) -> Limits:
    unfinished = (*running, *ended)
    return limits.rules(
        Limits(),
        running=running,
        unfinished=unfinished,
        known_as_ours={each.run_id for each in unfinished},
    )


LIMITED = PrefectLimits(
    pool=4,
    by_queue={"night": 2},
    by_deployment={"d": 3},
    in_pool=(occupant("theirs"), occupant("ours", "night")),
    of_deployments=(occupant("theirs"), occupant("ours", "night"), occupant("elsewhere")),
)


def test_what_was_released_since_the_reading_counts_at_once() -> None:
    now = rules(LIMITED, occupant("ours", "night"), occupant("new", "night"))
    assert now.free_slots == 1
    assert now.free_slots_by_queue == {"night": 0}
    assert now.free_slots_by_deployment == {"d": 0}


def test_what_has_ended_since_the_reading_is_free_at_once() -> None:
    now = rules(LIMITED, ended=(occupant("ours", "night"),))
    assert now.free_slots == 3
    assert now.free_slots_by_queue == {"night": 2}


def test_the_slot_of_a_deployment_is_free_when_the_server_knows_of_the_end() -> None:
    before = rules(LIMITED, ended=(occupant("ours", "night"),))
    after = LIMITED.rules(Limits(), running=(), unfinished=(), known_as_ours={"ours"})
    assert before.free_slots_by_deployment == {"d": 0}
    assert after.free_slots_by_deployment == {"d": 1}


def test_without_limits_nothing_is_limited() -> None:
    assert rules(PrefectLimits(), occupant("ours")) == Limits()


def test_a_limit_that_was_lowered_below_what_runs_leaves_nothing() -> None:
    assert rules(PrefectLimits(pool=1), occupant("a"), occupant("b")).free_slots == 0


_OCCUPANTS = st.lists(
    st.builds(
        occupant,
        st.sampled_from([f"r{n}" for n in range(8)]),
        st.sampled_from(["day", "night"]),
        st.sampled_from(["d", "e", None]),
    ),
    unique_by=lambda each: each.run_id,
    max_size=8,
)


@given(here=_OCCUPANTS, running=_OCCUPANTS, limit=st.integers(0, 9))
def test_running_and_free_slots_are_never_more_than_the_limit(
    here: list[Occupant], running: list[Occupant], limit: int
) -> None:
    limits = PrefectLimits(
        pool=limit, by_queue={"night": limit}, in_pool=tuple(here), of_deployments=tuple(here)
    )
    now = rules(limits, *running)
    ours = {each.run_id for each in running}
    others = [each for each in here if each.run_id not in ours]
    assert now.free_slots is not None
    assert len(running) + len(others) + now.free_slots <= max(limit, len(running) + len(others))
    at_night = [each for each in (*running, *others) if each.queue == "night"]
    assert now.free_slots_by_queue["night"] == max(0, limit - len(at_night))
