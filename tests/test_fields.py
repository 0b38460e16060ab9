"""What a field may be, in words of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from xonar_prefect.fields import expected
from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker.configuration import XonarVariables


class Example(BaseModel):
    """One field of each sort."""

    text: str | None = None
    directory: Path
    switch: bool
    choice: Literal["auto", "cpu"]
    count: Annotated[int, Field(ge=1, le=16)]
    least: Annotated[int | None, Field(ge=0)] = None
    pause: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    share: Annotated[float, Field(ge=0, le=0.5)]
    table: dict[str, str | None]
    anything: Any = None


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("text", "a text"),
        ("directory", "a path"),
        ("switch", "true or false"),
        ("choice", "one of auto, cpu"),
        ("count", "a whole number from 1 to 16"),
        ("least", "a whole number of 0 or more"),
        ("pause", "a finite number greater than 0"),
        ("share", "a number from 0 to 0.5"),
        ("table", "names with texts"),
    ],
)
def test_a_field_is_described_with_its_bounds(field: str, words: str) -> None:
    assert expected(Example.model_fields[field]) == words


@pytest.mark.parametrize("model", [XonarSettings, XonarVariables])
def test_every_field_of_ours_can_be_described(model: type[BaseModel]) -> None:
    unknown = expected(Example.model_fields["anything"])
    described = {name: expected(field) for name, field in model.model_fields.items()}
    assert [name for name, words in described.items() if words == unknown] == []
