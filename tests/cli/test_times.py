from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from xonar_prefect.cli.times import end_of_duration, local_now, moment
from xonar_prefect.errors import TimeTextError

BERLIN = timezone(timedelta(hours=1))
NOON = datetime(2026, 11, 29, 12, 0, 30, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("45m", 2700),
        ("2h", 7200),
        (" 1D ", 86400),
        ("1h30m", 5400),
        ("3650d", 315360000),
    ],
)
def test_a_length_of_time_is_added_to_now(text: str, seconds: int) -> None:
    assert (end_of_duration(text, NOON) - NOON).total_seconds() == seconds


@pytest.mark.parametrize(
    "text", ["", "2", "2x", "0h", "-1h", "1.5h", "30m1h", "3651d", "99999999999999999999h", "٢h"]
)
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(TimeTextError, match="is no length of time; write it as in `45m`"):
        end_of_duration(text, NOON)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", "2026-11-29T18:00:00+01:00"),
        ("12:00", "2026-11-30T12:00:00+01:00"),
        ("8:05", "2026-11-30T08:05:00+01:00"),
        ("2026-11-30", "2026-11-30T00:00:00+01:00"),
        ("2026-11-29 12:01", "2026-11-29T12:01:00+01:00"),
        ("2026-11-29T11:30Z", "2026-11-29T11:30:00+00:00"),
    ],
)
def test_a_moment_is_the_next_one_in_the_time_zone_of_now(text: str, meant: str) -> None:
    assert moment(text, NOON).isoformat() == meant


@pytest.mark.parametrize("text", ["", "tomorrow", "25:00", "2026-13-01", "18"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(TimeTextError, match="is no time; write it as in `18:00`"):
        moment(text, NOON)


@pytest.mark.parametrize("text", ["2026-11-29", "2026-11-29 12:00", "2026-11-29T11:00Z"])
def test_a_moment_that_has_passed_is_refused(text: str) -> None:
    with pytest.raises(TimeTextError, match="has passed"):
        moment(text, NOON)


def test_now_has_a_time_zone() -> None:
    assert local_now().utcoffset() is not None
