"""Two trainings are of one kind when what shapes their work is the same."""

from __future__ import annotations

from typing import Any

import pytest

from xonar_prefect.core.identity import Recipe, profile_key
from xonar_prefect.errors import UnknownParameterError

IDENTITY: dict[str, Any] = {
    "flow": "nightly",
    "entrypoint": "train.py:nightly",
    "task": "train",
    "parameters": {"model": {"name": "cnn", "depth": 3}, "batch_size": 64, "epochs": 10},
    "profile_by": None,
    "gpus": 1,
}


def key(**changes: Any) -> str:
    return profile_key(**{**IDENTITY, **changes})


def test_the_same_kind_has_the_same_key() -> None:
    assert key() == key()
    assert key(parameters=dict(reversed(IDENTITY["parameters"].items()))) == key()


@pytest.mark.parametrize(
    "change",
    [
        {"flow": "other"},
        {"entrypoint": None},
        {"task": "other"},
        {"gpus": 2},
        {"parameters": {**IDENTITY["parameters"], "epochs": 11}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_kind_has_another_key(change: dict[str, Any]) -> None:
    assert key(**change) != key()


def test_only_the_named_parameters_shape_the_key() -> None:
    def by(epochs: int, depth: int) -> str:
        parameters = {"model": {"name": "cnn", "depth": depth}, "batch_size": 64, "epochs": epochs}
        return key(parameters=parameters, profile_by=["batch_size", "model.depth"])

    assert by(epochs=10, depth=3) == by(epochs=99, depth=3)
    assert by(epochs=10, depth=3) != by(epochs=10, depth=4)


@pytest.mark.parametrize("path", ["bach_size", "model.dept", "batch_size.value"])
def test_a_parameter_that_is_not_there_is_named_with_those_that_are(path: str) -> None:
    with pytest.raises(UnknownParameterError, match=f"'{path}'.*batch_size, epochs, model"):
        key(profile_by=[path])


def test_a_recipe_makes_the_key_that_the_training_made() -> None:
    recipe = Recipe(
        flow="nightly", entrypoint="train.py:nightly", task="train", profile_by=("batch_size",)
    )
    assert recipe.key_for(IDENTITY["parameters"], gpus=1) == key(profile_by=["batch_size"])
