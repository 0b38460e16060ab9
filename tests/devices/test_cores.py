from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.devices.cores import default_cores, parse_cores
from xonar_prefect.errors import CoreListError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0,)),
        ("0,2-3", (0, 2, 3)),
        ("3,1,2-3", (1, 2, 3)),
        (" 1 , 2-3 ", (1, 2, 3)),
    ],
)
def test_cores_are_read_as_taskset_writes_them(text: str, expected: tuple[int, ...]) -> None:
    assert parse_cores(text, range(4)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is neither a core nor a range"),
        ("0,", "'' is neither a core nor a range"),
        ("zero", "'zero' is neither a core nor a range"),
        ("-1", "'-1' is neither a core nor a range"),
        ("1-", "'1-' is neither a core nor a range"),
        ("0-3:2", "'0-3:2' is neither a core nor a range"),
        ("²", "'²' is neither a core nor a range"),
        ("3-1", "'3-1' ends before it begins"),
        ("7", "core 7 is not available"),
        ("0-3", "core 2 is not available"),
        ("0-99999999999", "core 99999999999 is not available"),
    ],
)
def test_a_wrong_list_is_refused_with_what_is_wrong_and_what_there_is(text: str, why: str) -> None:
    with pytest.raises(CoreListError) as refusal:
        parse_cores(text, {0, 1, 3})
    assert f"is {text!r}: {why};" in str(refusal.value)
    assert "may use: 0, 1, 3." in str(refusal.value)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_what_is_written_out_is_read_back(cores: set[int]) -> None:
    assert parse_cores(",".join(str(core) for core in cores), cores) == tuple(sorted(cores))


@pytest.mark.parametrize(
    ("available", "expected"),
    [({0}, (0,)), ({0, 1}, (0, 1)), ({0, 1, 2}, (1, 2)), ({9, 4, 6}, (6, 9))],
)
def test_of_more_than_two_cores_one_is_left_to_the_worker(
    available: set[int], expected: tuple[int, ...]
) -> None:
    assert default_cores(available) == expected
