from __future__ import annotations

import math

import pytest

from tests.core.building import MODEL, observation
from xonar_prefect.core.interference import InterferenceModel, Load, likeness_of
from xonar_prefect.core.interference.likeness import Families
from xonar_prefect.core.models import Observation


def named(text: str) -> Load:
    return Load(text, None, likeness_of({"training": text}))


def learned(*observations: Observation) -> InterferenceModel:
    keys = {each.profile_key for each in observations}
    keys |= {key for each in observations for key in each.partner_keys}
    return InterferenceModel.from_observations(
        observations, [], {key: {"training": key} for key in keys}
    )


def test_without_parameters_nothing_is_alike() -> None:
    assert likeness_of({}) is None


def test_kinds_are_alike_but_for_their_numbers() -> None:
    small = likeness_of({"model": "bert", "batch_size": "8"})
    large = likeness_of({"batch_size": "64", "model": "bert"})
    other = likeness_of({"model": "vgg", "batch_size": "8"})
    assert small is not None
    assert large is not None
    assert other is not None
    likenesses = {"small": small, "large": large, "other": other, "never seen": small}
    seen = frozenset({"small", "large", "other", "of no likeness"})
    families = Families(likenesses, seen)
    assert families.members(small.family) == ["large", "small"]
    assert families.members(other.family) == ["other"]
    assert families.alike(small, but=None) == pytest.approx([1 / 8, 1])
    assert families.alike(small, but="small") == pytest.approx([1 / 8, 0])
    assert families.alike(large, but="other") == pytest.approx([1, 1 / 8])
    wider = Families(likenesses, seen, scale=2.0)
    assert wider.alike(small, but=None) == pytest.approx([math.sqrt(1 / 8), 1])


def test_of_a_family_never_seen_nobody_is_alike() -> None:
    likeness = likeness_of({"model": "bert"})
    assert likeness is not None
    assert Families().alike(likeness, but="a") == []


def test_a_kind_never_seen_is_expected_to_suffer_like_those_alike() -> None:
    model = learned(*[observation("LM (batch size 10)", "x", slowdown=3.0)] * 5)
    before = learned().expect(named("LM (batch size 20)"), [named("new")], MODEL)
    alike = model.expect(named("LM (batch size 20)"), [named("new")], MODEL)
    further = model.expect(named("LM (batch size 200)"), [named("new")], MODEL)
    different = model.expect(named("GAN"), [named("new")], MODEL)
    assert alike > further > different >= before


def test_own_observations_count_more_than_those_of_kinds_alike() -> None:
    model = learned(
        *[observation("LM (batch size 10)", "x", slowdown=3.0)] * 5,
        *[observation("LM (batch size 20)", f"y{i}", slowdown=1.1) for i in range(8)],
    )
    assert model.expect(named("LM (batch size 20)"), [named("y0")], MODEL) < 1.3


def test_uncertainty_falls_with_what_was_observed_of_kind_and_set() -> None:
    nothing = learned()
    others = learned(observation("a", "c", slowdown=1.5), observation("b", "c", slowdown=1.5))
    itself = learned(*[observation("a", "b", slowdown=1.5)] * 5)
    spreads = [m.spread(named("a"), [named("b")], MODEL) for m in (nothing, others, itself)]
    assert spreads[0] > spreads[1] > spreads[2] > 0
    assert nothing.spread(named("a"), [], MODEL) == 0.0


def test_old_observations_give_way_to_new_ones() -> None:
    def seen(slowdown: float, day: float) -> Observation:
        return Observation(
            device_model=MODEL,
            profile_key="a",
            partner_keys=("b",),
            slowdown=slowdown,
            steps=1000,
            observed_at_s=day * 86400,
        )

    together = learned(seen(3.0, 0), seen(1.2, 0)).expect(named("a"), [named("b")], MODEL)
    aged = learned(seen(3.0, 0), seen(1.2, 90)).expect(named("a"), [named("b")], MODEL)
    assert aged < together


def test_something_is_always_expected() -> None:
    assert learned().expect(Load(None, None), [Load(None, None)], MODEL) > 1.0
    assert learned().expect(Load(None, None), [], MODEL) == 1.0
