from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.lookahead import Future, Pause, Scene, cost


class EqualSpeeds(dict[tuple[int, ...], tuple[float, ...]]):
    """Everybody is slowed down by the same factor for each partner."""

    def __init__(self, slowdown: float) -> None:
        super().__init__()
        self.slowdown = slowdown

    def __missing__(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(1.0 / self.slowdown ** (len(loads) - 1) for _ in loads)


def future(
    seconds: float, *, weight: float = 1.0, mib: int | None = 10, **values: object
) -> Future:
    return Future(seconds=seconds, load=0, weight=weight, mib=mib, **values)  # type: ignore[arg-type]


def scene(
    *running: Future,
    waiting: tuple[Future, ...] = (),
    slowdown: float = 1.25,
    slots: int = 2,
    behind: float = 0.0,
) -> Scene:
    return Scene(running, waiting, slots, 100, behind, EqualSpeeds(slowdown), 30.0)


def test_one_alone_takes_its_time() -> None:
    assert cost(scene(future(100.0)), None) == pytest.approx(100.0)
    assert cost(scene(), future(100.0, weight=2.0)) == pytest.approx(200.0)


def test_two_together_end_as_their_slowdowns_say() -> None:
    # both at 1 / 1.25: the shorter ends at 125, the longer has 100 left then
    assert cost(scene(future(200.0)), future(100.0)) == pytest.approx(125.0 + 225.0)


def test_who_is_held_back_comes_when_the_first_has_ended() -> None:
    waiting = (future(50.0),)
    alone = cost(scene(future(100.0), waiting=waiting), None, Pause.UNTIL_NEXT_END)
    assert alone == pytest.approx(100.0 + 150.0)


def test_sharing_that_makes_all_slower_is_not_foreseen() -> None:
    waiting = (future(100.0),)
    assert cost(scene(future(100.0), waiting=waiting, slowdown=3.0), None) == pytest.approx(300.0)


def test_a_short_one_is_foreseen_beside_a_long_one_even_at_a_loss() -> None:
    together = cost(scene(future(36000.0), waiting=(future(60.0),), slowdown=1 / 0.49), None)
    assert together < 36000.0 + 36060.0


def test_all_who_wait_behind_pay_for_every_second() -> None:
    few, many = scene(future(100.0)), scene(future(100.0), behind=5.0)
    assert cost(many, None) - cost(few, None) == pytest.approx(500.0)


def test_nobody_comes_where_memory_lacks() -> None:
    full = scene(future(100.0, mib=95), waiting=(future(10.0),))
    assert cost(full, None) == pytest.approx(100.0 + 110.0)


def test_an_unprofiled_one_starts_alone_and_keeps_others_away_until_it_is_profiled() -> None:
    blind = future(100.0, blind=True, kind=1)
    joined = cost(scene(waiting=(future(10.0),)), blind)
    # from 30 on both at 1 / 1.25: the shorter ends at 42.5, the longer has 60 left then
    assert joined == pytest.approx(42.5 + 102.5)


def test_nobody_ever_joins_who_takes_the_whole_device() -> None:
    alone = future(100.0, mib=None, blind=True, kind=1)
    assert cost(scene(waiting=(future(10.0),)), alone) == pytest.approx(100.0 + 110.0)


def test_one_whose_kind_is_profiled_elsewhere_may_join_others() -> None:
    there, blind = future(100.0), future(10.0, blind=True, kind=1)
    after = scene(there, waiting=(blind,))
    assert cost(after, None) == pytest.approx(100.0 + 110.0)
    beside = after._replace(profiled=frozenset({1}))
    assert cost(beside, None) == pytest.approx(12.5 + 102.5)


def test_a_higher_priority_comes_first_though_it_is_longer() -> None:
    urgent, cheap = future(100.0, priority=1), future(10.0, priority=2)
    end = cost(scene(future(50.0), waiting=(urgent, cheap), slots=1), None)
    assert end == pytest.approx(50.0 + 150.0 + 160.0)


@given(
    st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=6),
    st.floats(1.0, 3.0),
    st.integers(1, 3),
)
def test_everybody_is_served_and_nobody_faster_than_alone(
    lengths: list[float], slowdown: float, slots: int
) -> None:
    all_of_them = tuple(future(seconds) for seconds in sorted(lengths))
    total = cost(scene(waiting=all_of_them, slowdown=slowdown, slots=slots), None)
    assert total >= sum(lengths) - 1e-3
    serial = sum(seconds * (len(lengths) - i) for i, seconds in enumerate(sorted(lengths)))
    if slots == 1:
        assert total == pytest.approx(serial)
