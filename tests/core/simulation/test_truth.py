from __future__ import annotations

import pytest

from xonar_prefect.core.simulation import MeasuredPairs, ProcessorSharing

FRACTIONS = {("V100", "a"): 0.5, ("V100", "b"): 0.4}
SHARING = ProcessorSharing(active_fractions=FRACTIONS)
PAIRS = MeasuredPairs(
    throughputs={("V100", "a", "b"): 0.8, ("V100", "a", "c"): 0.5, ("V100", "b", "a"): 0.625},
    clashes=frozenset({("V100", "b", "c")}),
    otherwise=SHARING,
)


def test_processor_sharing_of_two_is_one_plus_u_times_v() -> None:
    assert SHARING.slowdown("a", ["b"], "V100") == pytest.approx(1.2)
    assert SHARING.slowdown("a", [], "V100") == 1.0


def test_an_unknown_active_fraction_counts_as_always_active() -> None:
    assert SHARING.slowdown("a", ["unknown"], "V100") == pytest.approx(1.5)
    assert SHARING.slowdown("a", ["b"], "K80") == pytest.approx(2.0)


def test_a_sharing_cost_raises_the_excess() -> None:
    costly = ProcessorSharing(active_fractions=FRACTIONS, sharing_cost=0.5)
    assert costly.slowdown("a", ["b"], "V100") == pytest.approx(1.3)


def test_a_measured_pair_is_as_it_was_measured_on_either_side() -> None:
    assert PAIRS.slowdown("a", ["b"], "V100") == 1.25
    assert PAIRS.slowdown("b", ["a"], "V100") == 1.6
    assert PAIRS.slowdown("a", [], "V100") == 1.0


def test_what_was_not_measured_follows_the_other_law() -> None:
    assert PAIRS.slowdown("b", ["b"], "V100") == pytest.approx(1.16)
    assert PAIRS.is_measured(("a", "b"), "V100")
    assert not PAIRS.is_measured(("a", "c"), "V100")  # one side only
    assert not PAIRS.is_measured(("a", "b"), "K80")


def test_more_than_two_multiply_what_each_pair_costs() -> None:
    assert PAIRS.slowdown("a", ["b", "c"], "V100") == pytest.approx(2.5)


def test_a_set_runs_out_of_memory_where_a_pair_of_it_did() -> None:
    assert PAIRS.out_of_memory(["c", "a", "b"], "V100")
    assert not PAIRS.out_of_memory(["a", "b"], "V100")
    assert not PAIRS.out_of_memory(["b", "c"], "K80")
