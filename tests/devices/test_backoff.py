from __future__ import annotations

from xonar_prefect.devices.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_attempts_become_rarer_up_to_one_a_minute() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    assert not backoff.take()  # nothing has failed
    for pause_s in (0, 1, 2, 4, 8, 16, 32, 60, 60):
        backoff.plan()
        backoff.plan()  # a second failure meanwhile plans nothing new
        if pause_s:
            clock.now_s += pause_s - 0.5
            assert not backoff.take()
            clock.now_s += 0.5
        assert backoff.take()
        assert not backoff.take()


def test_after_a_success_the_next_failure_is_tried_again_at_once() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(5):
        backoff.plan()
        clock.now_s += 60
        assert backoff.take()
    backoff.plan()
    backoff.reset()
    assert not backoff.take()
    backoff.plan()
    assert backoff.take()
