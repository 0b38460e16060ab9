from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.leading import Interruptions, LeadingOptimizer


class Optimizer:
    """Anything that steps."""


def steps_counted(order: str) -> str:
    """Which of the steps taken, one letter per optimizer, are steps of the training."""
    leading = LeadingOptimizer()
    optimizers = {name: Optimizer() for name in sorted(set(order))}
    return "".join(name if leading.stepped(optimizers[name]) else "." for name in order)


def test_every_step_of_the_only_optimizer_counts() -> None:
    assert steps_counted("aaa") == "aaa"


def test_two_optimizers_that_step_in_turn_make_one_step_together() -> None:
    assert steps_counted("abababab") == "a.a.a.a."


def test_three_optimizers_that_step_in_turn_make_one_step_together() -> None:
    assert steps_counted("abcabcabc") == "a..a..a.."


def test_the_one_that_steps_more_often_takes_the_lead() -> None:
    assert steps_counted("gddddgddddg") == "g.ddd.dddd."


def test_models_trained_one_after_the_other_lead_in_turn() -> None:
    assert steps_counted("aaabbbb") == "aaa.bbb"


def test_when_the_leader_is_gone_the_next_one_leads_at_once() -> None:
    leading = LeadingOptimizer()
    first, second = Optimizer(), Optimizer()
    assert leading.stepped(first)
    del first
    gc.collect()
    assert leading.leader is None
    assert leading.stepped(second)


@given(st.text("abc", min_size=1, max_size=60))
def test_no_optimizer_waits_for_ever_and_none_counts_twice(order: str) -> None:
    counted = steps_counted(order)
    assert len(counted) == len(order)
    # Between two steps that count, nobody has stepped twice without counting.
    for stretch in counted.replace("a", "|").replace("b", "|").replace("c", "|").split("|"):
        assert len(stretch) <= 2


def test_what_comes_now_and_then_interrupts_a_step() -> None:
    interruptions = Interruptions()
    interruptions.stepped()
    assert interruptions.interrupts()
    interruptions.stepped()
    interruptions.stepped()
    assert interruptions.interrupts()


def test_what_comes_twice_within_a_step_interrupts_it_once() -> None:
    interruptions = Interruptions()
    assert interruptions.interrupts()
    assert not interruptions.interrupts()


def test_what_comes_in_every_step_is_a_part_of_it() -> None:
    interruptions = Interruptions()
    assert interruptions.interrupts()
    for _ in range(5):
        interruptions.stepped()
        assert not interruptions.interrupts()
