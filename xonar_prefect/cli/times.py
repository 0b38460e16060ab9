"""Times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from xonar_prefect.errors import TimeTextError

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}", re.ASCII)
_LONGEST = timedelta(days=3650)


def end_of_duration(text: str, now: datetime) -> datetime:
    """Return when a time such as `90s`, `45m`, `2h`, `1d` or `1h30m` will have passed.

    >>> end_of_duration("1h30m", datetime(2026, 11, 29, 12, tzinfo=timezone.utc)).isoformat()
    '2026-11-29T13:30:00+00:00'

    Raises:
        TimeTextError: It is no such time, none at all, or longer than ten years.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    days, hours, minutes, seconds = (
        (int(part or 0) for part in match.groups()) if match else [0] * 4
    )
    if not days + hours + minutes + seconds:
        raise TimeTextError.of_duration(text)
    if days > _LONGEST.days or hours + minutes + seconds > _LONGEST.total_seconds():
        raise TimeTextError.of_duration(text)
    return now + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def moment(text: str, now: datetime) -> datetime:
    """Return the moment that a text such as `18:00`, `2026-11-30` or `2026-11-30 08:00` means.

    A time of day is the next one; without a time zone it is that of `now`.

    >>> noon = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
    >>> [moment(text, noon).isoformat() for text in ("11:30", "2026-11-30T08:00Z")]
    ['2026-11-30T11:30:00+00:00', '2026-11-30T08:00:00+00:00']

    Raises:
        TimeTextError: It is no such moment, or it has passed.
    """
    given = text.strip()
    try:
        if _TIME_OF_DAY.fullmatch(given):
            hours, minutes = (int(part) for part in given.split(":"))
            at = now.replace(hour=hours, minute=minutes, second=0, microsecond=0)
            return at if at > now else at + timedelta(days=1)
        at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", given))
    except ValueError as error:
        raise TimeTextError.of_moment(text) from error
    at = at if at.tzinfo else at.replace(tzinfo=now.tzinfo)
    if at <= now:
        raise TimeTextError.passed(text)
    return at


def local_now() -> datetime:
    """Return the time in this host's time zone."""
    return datetime.now(timezone.utc).astimezone()
