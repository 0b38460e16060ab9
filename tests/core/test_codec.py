"""What travels as JSON comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from xonar_prefect.core import codec
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState, Transition
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.quarantine import Quarantine, QuarantineCause
from xonar_prefect.errors import InvalidValueError

PROFILE = Profile(
    key="k",
    device_model="V100",
    active_fraction=0.62,
    step_seconds=0.05,
    step_seconds_interval=(0.04, 0.06),
    peak_memory_mib=9000,
    steps=12,
)
RECIPE = Recipe(flow="f", entrypoint="t.py:f", task="train", profile_by=("batch_size",))
OBSERVATION = Observation(
    device_model="V100", profile_key="k", partner_keys=("j",), slowdown=1.2, steps=40
)
ENTRY = LedgerEntry(
    run_id="r",
    name="cnn",
    worker="one",
    state=SlotState.RUNNING,
    devices=("GPU-1",),
    partners=("s",),
    run_directory="runs/r",
    reserved_at_s=1.0,
    co_runs=(CoRun(partners=("s",), partner_keys=("j",), steps=5, seconds=0.5),),
)


TRANSITION = Transition.to_state_of(ENTRY)
QUARANTINE = Quarantine(
    host="box",
    device="GPU-1",
    cause=QuarantineCause.FAILS_FAST,
    reason="3 trainings failed",
    begun_at_s=1.0,
    pids=(7,),
)


@pytest.mark.parametrize(
    ("value", "encode", "decode"),
    [
        (PROFILE, codec.profile_to_dict, codec.profile_from_dict),
        (RECIPE, codec.recipe_to_dict, codec.recipe_from_dict),
        (OBSERVATION, codec.observation_to_dict, codec.observation_from_dict),
        (ENTRY, codec.ledger_entry_to_dict, codec.ledger_entry_from_dict),
        (TRANSITION, codec.transition_to_dict, codec.transition_from_dict),
        (QUARANTINE, codec.quarantine_to_dict, codec.quarantine_from_dict),
    ],
    ids=["profile", "recipe", "observation", "ledger entry", "transition", "quarantine"],
)
def test_a_value_survives_its_way_through_json(
    value: object, encode: Callable[[Any], Any], decode: Callable[[Any], object]
) -> None:
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_a_field_of_a_newer_version_is_ignored() -> None:
    values = {**codec.profile_to_dict(PROFILE), "energy_joules": 3}
    assert codec.profile_from_dict(values) == PROFILE


@pytest.mark.parametrize(
    "wrong", [{"active_fraction": 1.5}, {"step_seconds": 0}, {"peak_memory_mib": 0}]
)
def test_a_value_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        codec.profile_from_dict({**codec.profile_to_dict(PROFILE), **wrong})
