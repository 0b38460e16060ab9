from __future__ import annotations

from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from tests.cli.demo.building import result
from xonar_prefect.cli.demo import comparison
from xonar_prefect.cli.demo.comparison import ARMS, Comparison


def _compared(*averages: tuple[float | None, float | None, float | None]) -> Comparison:
    return Comparison(
        repeats=tuple(
            dict(zip(ARMS, (result(average) for average in repeat), strict=True))
            for repeat in averages
        )
    )


def test_every_arm_comes_first_equally_often() -> None:
    orders = [comparison.order_of(repeat) for repeat in range(6)]

    assert Counter(order[0] for order in orders) == dict.fromkeys(ARMS, 2)
    assert all(sorted(order) == sorted(ARMS) for order in orders)


def test_differences_are_paired_by_repeat() -> None:
    compared = _compared((80.0, 100.0, 100.0), (60.0, 50.0, 120.0))

    assert compared.differences("serial") == pytest.approx((-0.2, 0.2))
    assert compared.differences("parallel") == pytest.approx((-0.2, -0.5))


def test_worse_is_said_as_plainly_as_better() -> None:
    better, worse = comparison.sentences_about(_compared((80.0, 100.0, 64.0)))

    assert "our average JCT is 20.0% lower" in better
    assert "our average JCT is 25.0% higher" in worse


def test_one_repeat_claims_nothing_about_chance() -> None:
    assert (
        "no statement about chance" in comparison.sentences_about(_compared((80.0, 100.0, 90.0)))[0]
    )


def test_several_repeats_state_their_range() -> None:
    compared = _compared((80.0, 100.0, 100.0), (90.0, 100.0, 100.0), (70.0, 100.0, 100.0))

    assert (
        "20.0% lower (-30.0% to -10.0% in 3 paired repeats)"
        in comparison.sentences_about(compared)[0]
    )


def test_a_repeat_with_a_failed_training_gives_no_mean() -> None:
    compared = _compared((80.0, 100.0, 100.0), (None, 100.0, 100.0))

    assert compared.average_jct_s("ours") is None
    assert compared.differences("serial") == (pytest.approx(-0.2), None)
    assert "no figure" in comparison.sentences_about(compared)[0]


def test_json_holds_ours_the_others_and_every_repeat() -> None:
    data = _compared((80.0, 100.0, 90.0), (60.0, 90.0, 70.0)).to_json()

    assert data["average_jct_s"] == 70.0
    assert data["serial"]["average_jct_s"] == 95.0
    assert data["parallel"]["average_jct_s"] == 80.0
    assert [each["ours"]["average_jct_s"] for each in data["repeats"]] == [80.0, 60.0]
    assert [each["name"] for each in data["trainings"]] == ["cnn-1 (1)", "cnn-1 (2)"]


def test_table_shows_each_repeat_and_the_mean() -> None:
    console = Console(width=100, file=StringIO())

    console.print(comparison.table_of(_compared((80.0, 100.0, 90.0), (None, 90.0, 70.0)), "lucid"))

    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "(ours: lucid)" in text
    assert "-20.0%" in text
    assert [line.split("│")[2].strip() for line in text.splitlines() if "│" in line] == [
        "80.0 s",
        "-",
        "-",
    ]
