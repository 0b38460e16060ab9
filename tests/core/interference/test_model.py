from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.building import (
    MODEL,
    device,
    observation,
    profile,
    resident,
    training,
)
from xonar_prefect.core.interference import (
    InterferenceModel,
    KeptModel,
    Load,
    mean_number_active,
    prior_slowdown,
)
from xonar_prefect.core.interference.learning import NOTHING_LEARNT
from xonar_prefect.core.models import (
    Observation,
    Profile,
    Snapshot,
)

FRACTIONS = st.floats(0.0, 1.0)


def recursion(own: float, others: list[float]) -> float:
    """Mean-value analysis as it is usually written: a recursion over subsets."""

    def found_by(index: int, members: tuple[int, ...]) -> float:
        rest = tuple(member for member in members if member != index)
        return sum(number(member, rest) for member in rest)

    fractions = [own, *others]

    def number(index: int, members: tuple[int, ...]) -> float:
        u, queue = fractions[index], found_by(index, members)
        return u * (1 + queue) / (1 + u * queue)

    return 1 + own * found_by(0, tuple(range(len(fractions))))


def model_of(
    observations: list[Observation], profiles: list[Profile] | None = None
) -> InterferenceModel:
    return InterferenceModel.from_observations(observations, profiles or [])


EMPTY = model_of([])


@given(FRACTIONS, FRACTIONS)
def test_two_trainings_slow_each_other_down_by_one_plus_u_v(u: float, v: float) -> None:
    assert prior_slowdown(u, [v], sharing_cost=0.0) == pytest.approx(1 + u * v)
    assert prior_slowdown(u, [v], sharing_cost=0.1) == pytest.approx(1 + 1.1 * u * v)


def test_three_half_active_trainings_are_worse_than_a_pairwise_sum() -> None:
    assert prior_slowdown(0.5, [0.5, 0.5], sharing_cost=0.0) == pytest.approx(1.6)


def test_always_active_trainings_share_the_device_evenly() -> None:
    assert prior_slowdown(1.0, [1.0] * 3, sharing_cost=0.0) == pytest.approx(4.0)


@given(FRACTIONS, st.lists(FRACTIONS, max_size=4))
def test_closed_form_equals_the_recursion_of_mean_value_analysis(
    own: float, others: list[float]
) -> None:
    assert prior_slowdown(own, others, sharing_cost=0.0) == pytest.approx(recursion(own, others))


@given(st.lists(FRACTIONS, max_size=6), FRACTIONS)
def test_one_more_training_never_empties_the_device(others: list[float], more: float) -> None:
    assert mean_number_active([*others, more]) >= mean_number_active(others) - 1e-12


def test_sixteen_trainings_are_no_problem() -> None:
    assert 1 < prior_slowdown(0.5, [0.5] * 15) < 16


def test_prediction_without_observations_is_the_prior_with_its_sharing_cost() -> None:
    predicted = EMPTY.predict(Load("a", 0.5), [Load("b", 0.6)], MODEL)
    assert predicted == pytest.approx(1 + 1.1 * 0.5 * 0.6)


def test_alone_there_is_no_slowdown() -> None:
    assert EMPTY.predict(Load(None, None), [], MODEL) == 1.0


@pytest.mark.parametrize(
    ("load", "partner"),
    [(Load("a", None), Load("b", 0.5)), (Load("a", 0.5), Load("b", None)), (Load(None, None),) * 2],
)
def test_nothing_is_predicted_where_nothing_is_known(load: Load, partner: Load) -> None:
    assert EMPTY.predict(load, [partner], MODEL) is None


def test_observations_are_enough_where_activity_is_unknown() -> None:
    learned = model_of([observation("a", "b", slowdown=2.0)])
    first = learned.predict(Load("a", None), [Load("b", None)], MODEL)
    assert first is not None
    assert 1.5 < first < 2.0
    learned = model_of([observation("a", "b", slowdown=2.0)] * 50)
    assert learned.predict(Load("a", None), [Load("b", None)], MODEL) == pytest.approx(
        2.0, rel=0.01
    )


def test_observations_of_another_device_model_say_nothing() -> None:
    learned = model_of([observation("a", "b", slowdown=2.0, model="A100")])
    assert learned.predict(Load("a", None), [Load("b", None)], MODEL) is None


def test_prediction_moves_from_prior_to_observation_as_evidence_grows() -> None:
    prior = EMPTY.predict(Load("a", 0.5), [Load("b", 0.5)], MODEL)
    profiles = [profile("a", 0.5), profile("b", 0.5)]
    predictions = [prior]
    for count in (1, 2, 5, 20, 100):
        learned = model_of([observation("a", "b", slowdown=2.0)] * count, profiles)
        predictions.append(learned.predict(Load("a", 0.5), [Load("b", 0.5)], MODEL))
    assert predictions == sorted(predictions, key=float)  # type: ignore[arg-type]
    assert predictions[-1] == pytest.approx(2.0, rel=0.02)


def test_few_steps_say_less_than_many() -> None:
    def predicted(steps: int) -> float:
        learned = model_of([observation("a", "b", slowdown=2.0, steps=steps)])
        value = learned.predict(Load("a", 0.5), [Load("b", 0.5)], MODEL)
        assert value is not None
        return value

    assert predicted(1) < predicted(10) < predicted(1000)


def test_a_training_that_suffered_is_expected_to_suffer_beside_others() -> None:
    learned = model_of([observation("a", "b", slowdown=3.0)] * 5)
    fresh = Load("new", 0.5)
    after = learned.predict(Load("a", 0.5), [fresh], MODEL)
    before = EMPTY.predict(Load("a", 0.5), [fresh], MODEL)
    assert after is not None
    assert before is not None
    assert after > before


def test_a_training_that_made_others_suffer_is_expected_to_do_it_again() -> None:
    seen = [observation(victim, "noisy", slowdown=3.0) for victim in "abc"]
    quiet = [observation(victim, "quiet", slowdown=1.1) for victim in "abc"]
    learned = model_of([*seen, *quiet])
    beside = {
        name: learned.predict(Load("new", 0.5), [Load(name, 0.5)], MODEL)
        for name in ("noisy", "quiet")
    }
    assert beside["noisy"] > beside["quiet"]  # type: ignore[operator]


def test_this_very_set_counts_more_than_the_same_training_with_others() -> None:
    others = [observation("a", partner, slowdown=1.2) for partner in "bcd"]
    learned = model_of([*others, *[observation("a", "e", slowdown=3.0)] * 5])
    with_e = learned.predict(Load("a", None), [Load("e", None)], MODEL)
    with_b = learned.predict(Load("a", None), [Load("b", None)], MODEL)
    assert with_e > 2.4  # type: ignore[operator]
    assert with_b < 1.6  # type: ignore[operator]


def test_a_set_that_is_seen_again_and_again_teaches_others_no_more() -> None:
    profiles = [profile("a", 0.5), profile("b", 0.5)]
    costs = [
        model_of(
            [observation("a", "b", slowdown=2.0, steps=10**6)] * count, profiles
        ).lessons.sharing_costs[MODEL]
        for count in (1, 2, 100)
    ]
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-3)
    assert costs[0] > 0.1


def test_sharing_cost_is_learned_per_device_model() -> None:
    fractions = {f"k{i}": 0.3 + 0.05 * i for i in range(10)}
    seen = [
        observation(a, b, slowdown=1 + 1.5 * fractions[a] * fractions[b])
        for a, b in itertools.permutations(fractions, 2)
    ]
    learned = model_of(seen, [profile(key, active) for key, active in fractions.items()])
    assert learned.lessons.sharing_costs[MODEL] == pytest.approx(0.5, abs=0.03)
    unseen = learned.predict(Load("new", 0.6), [Load("other", 0.6)], MODEL)
    assert unseen == pytest.approx(1 + 1.5 * 0.36, rel=0.03)
    elsewhere = learned.predict(Load("new", 0.6), [Load("other", 0.6)], "A100")
    assert elsewhere == pytest.approx(1 + 1.1 * 0.36)


@given(
    st.lists(
        st.builds(
            lambda a, b, s: observation(a, b, slowdown=s),
            st.sampled_from("abc"),
            st.sampled_from("abc"),
            st.floats(0.2, 20),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_predictions_do_not_depend_on_the_order_of_observations(
    seen: list[Observation], shuffler: random.Random
) -> None:
    profiles = [profile("a", 0.9), profile("b", 0.2)]
    shuffled = seen[:]
    shuffler.shuffle(shuffled)
    assert model_of(seen, profiles) == model_of(shuffled, profiles)


@given(st.floats(0.01, 0.99))
def test_no_training_is_predicted_to_run_faster_beside_others(slowdown: float) -> None:
    learned = model_of([observation("a", "b", slowdown=slowdown)] * 20)
    assert learned.predict(Load("a", 0.1), [Load("b", 0.1)], MODEL) == 1.0


def test_order_of_partners_does_not_matter() -> None:
    learned = model_of([observation("a", "b", "c", slowdown=2.5)] * 3)
    loads = [Load("b", 0.4), Load("c", 0.7)]
    assert learned.predict(Load("a", 0.5), loads, MODEL) == learned.predict(
        Load("a", 0.5), loads[::-1], MODEL
    )


def test_snapshot_gives_the_fractions_of_held_running_and_absent_kinds() -> None:
    held, running = training("a", active=0.8), training("b", active=0.9)
    taken = Snapshot(
        now_s=0.0,
        held=(held,),
        devices=(device(0, resident(running)),),
        observations=(observation("a", "b", slowdown=2.5), observation("c", "b", slowdown=2.5)),
        profiles=(profile("c", 0.7),),
    )
    learned = InterferenceModel.of(taken)
    assert learned.fractions == {(MODEL, "a"): 0.8, (MODEL, "b"): 0.9, (MODEL, "c"): 0.7}
    assert learned.lessons.sharing_costs[MODEL] > 0.1


def test_load_of_a_training_is_its_kind_and_activity_on_that_model() -> None:
    assert Load.of(training("a", active=0.3), MODEL) == Load("a", 0.3)
    assert Load.of(training("a", active=0.3), "A100") == Load("a", None)


def test_a_model_is_kept_until_there_is_something_new_to_learn_from() -> None:
    kept = KeptModel()
    seen = (observation("a", "b", slowdown=1.7),)
    held = (training("a", active=0.5), training("b", active=0.6))
    now = Snapshot(now_s=0.0, held=held, devices=(device(),), observations=seen)
    first = kept.of(now)
    assert first == InterferenceModel.of(now)
    assert kept.of(replace(now, now_s=60.0)) is first

    known = replace(now, held=(training("a", active=0.9), held[1]))
    more = replace(now, observations=(*seen, observation("b", "a", slowdown=1.2)))
    for news in (known, more):
        assert kept.of(news) == InterferenceModel.of(news) != first
    assert kept.of(replace(now, observations=())) == InterferenceModel({}, NOTHING_LEARNT)
