import pytest

from xonar_prefect.errors import InvalidValueError
from xonar_prefect.profiling import Window


def test_default_is_three_dropped_and_ten_to_hundred_measured() -> None:
    assert Window() == Window(warm_up=3, minimum=10, maximum=100, precision=0.05)


@pytest.mark.parametrize(
    "wrong",
    [
        {"warm_up": -1},
        {"minimum": 1},
        {"minimum": 20, "maximum": 19},
        {"precision": 0.0},
        {"precision": float("nan")},
    ],
)
def test_a_rule_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError):
        Window(**wrong)  # type: ignore[arg-type]
