import itertools

from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.profiling.intervals import Coverage, subtract, union

points = st.integers(0, 60)
spans = st.lists(st.tuples(points, points), max_size=20)


def times(some: list[tuple[int, int]]) -> set[int]:
    return {point for begin, end in some for point in range(begin, end)}


@given(spans)
def test_union_keeps_the_time_and_nothing_overlaps_or_touches(
    some: list[tuple[int, int]],
) -> None:
    merged = union(some)
    assert times(merged) == times(some)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(merged))


@given(spans, spans)
def test_subtract_keeps_the_time_that_is_only_in_the_first(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    rest = subtract(union(some), union(others))
    assert times(rest) == times(some) - times(others)
    assert rest == union(rest)


@given(spans, points, points)
def test_coverage_is_the_time_within_the_window(
    some: list[tuple[int, int]], one: int, other: int
) -> None:
    begin, end = min(one, other), max(one, other)
    expected = len(times(some) & set(range(begin, end)))
    assert Coverage(union(some)).within(begin, end) == expected
