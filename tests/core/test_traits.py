from __future__ import annotations

import copy
import gc
from dataclasses import replace

from tests.core.building import MODEL, profile, training
from xonar_prefect.core import traits
from xonar_prefect.core.models import Training


def test_trainings_that_no_rule_tells_apart_have_the_same_traits() -> None:
    one = training("one", active=0.5, request=1000)
    other = replace(one, run_id="other", name="other", submitted_at_s=7.0, remaining_seconds=60.0)
    assert one.traits is other.traits
    assert one.traits is copy.copy(one).traits


def test_what_a_rule_looks_at_makes_other_traits() -> None:
    one = training("one", active=0.5, request=1000)
    measured = {MODEL: profile("one", 0.6, 1000)}
    others = [
        replace(one, gpus=2),
        replace(one, owner="somebody"),
        replace(one, parent="a run"),
        replace(one, memory_request_mib=1001),
        replace(one, profiles={}),
        replace(one, profiles=measured),
    ]
    assert len({id(each.traits) for each in [one, *others]}) == 1 + len(others)


def test_traits_are_no_part_of_a_trainings_value() -> None:
    asked, fresh = training("one"), training("one")
    assert asked.traits is not None
    assert asked == fresh
    assert repr(asked) == repr(fresh)


def test_traits_of_no_training_are_forgotten() -> None:
    def known() -> int:
        gc.collect()
        return len(traits._in_use)

    before = known()
    one: Training | None = training("one", owner="nobody else")
    assert one is not None
    assert one.traits is not None
    assert known() == before + 1
    one = None
    assert known() == before
