from __future__ import annotations

from xonar_prefect.worker.describing import as_text, owner_in


def test_a_tag_names_the_owner() -> None:
    assert owner_in(["gpu", "owner:eve", "owner:ada"]) == "ada"
    assert owner_in(["gpu", "owner:"]) is None
    assert owner_in([]) is None


def test_parameters_with_a_simple_value_tell_kinds_apart() -> None:
    assert as_text("f", {"lr": 0.1, "deep": True, "layers": [1], "none": None}) == {
        "flow": "f",
        "lr": "0.1",
        "deep": "True",
    }
