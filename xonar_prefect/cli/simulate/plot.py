"""Draws simulated queues as SVG: who was on which GPU when, and how JCTs are distributed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from xonar_prefect.cli.output import duration
from xonar_prefect.cli.simulate.performance import Performed
from xonar_prefect.core.models import Device
from xonar_prefect.core.planning.words import listing
from xonar_prefect.core.simulation import Outcome
from xonar_prefect.errors import FileUnwritableError

_WIDTH, _LEFT, _RIGHT = 960, 120, 44
_TITLE, _AXIS, _GAP = 26, 22, 16
_CURVES = 260
_MOST_DEVICES = 64
_MOST_LANES_HEIGHT = 420
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")


def draw(done: Performed, devices: Sequence[Device], lanes: int, queue: str | None) -> str:
    """Return the drawing.

    Args:
        done: What was simulated.
        devices: The devices, of which the first are drawn.
        lanes: Trainings that a device may take.
        queue: The queue whose trainings are drawn; by default the first.
    """
    shown = devices[:_MOST_DEVICES]
    parts: list[str] = []
    top = _GAP
    chosen = queue if queue is not None else next(iter(_queues(done)), "")
    drawn = {
        policy: queues[chosen] for policy, queues in done.outcomes.items() if queues.get(chosen)
    }
    end_s = max((each.finished_at_s for each in _all(drawn)), default=0.0)
    begin_s = min((each.submission.submitted_at_s for each in _all(drawn)), default=0.0)
    for policy, outcomes in drawn.items():
        name = f"{policy}, queue '{chosen}'" if chosen else policy
        gantt, height = _gantt(name, outcomes, shown, lanes, begin_s, end_s, top)
        parts += gantt
        top += height + _GAP
    if len(devices) > len(shown):
        parts.append(
            _text(_LEFT, top, f"{len(devices) - len(shown)} more GPUs are not drawn.", size=11)
        )
        top += _GAP
    jcts = {
        policy: sorted(each.served.jct_s for outcomes in queues.values() for each in outcomes)
        for policy, queues in done.outcomes.items()
    }
    parts += _distribution({policy: values for policy, values in jcts.items() if values}, top)
    top += _CURVES + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" '
        f'height="{top}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def write(path: Path, drawing: str) -> None:
    """Write a drawing to a file.

    Raises:
        FileUnwritableError: It cannot be written.
    """
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise FileUnwritableError(path, error.strerror or str(error)) from None


def _queues(done: Performed) -> Iterable[str]:
    return (queue for queues in done.outcomes.values() for queue in queues)


def _all(drawn: Mapping[str, Sequence[Outcome]]) -> Iterable[Outcome]:
    return (each for outcomes in drawn.values() for each in outcomes)


def _gantt(
    title: str,
    outcomes: Sequence[Outcome],
    devices: Sequence[Device],
    lanes: int,
    begin_s: float,
    end_s: float,
    top: int,
) -> tuple[list[str], int]:
    """Return a chart with a band for each device, and its height."""
    lane = max(2, min(14, _MOST_LANES_HEIGHT // (len(devices) * lanes)))
    band = lane * lanes + 2
    height = _TITLE + band * len(devices) + _AXIS
    parts = [_text(_LEFT, top + 16, title, size=14)]
    colours = _colours(each.submission.kind for each in outcomes)
    for row, device in enumerate(devices):
        y = top + _TITLE + row * band
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{band - 2}" '
            'fill="#f2f2f2"/>'
        )
        if band >= 12 or row % 8 == 0:
            label = device.label if device.host is None else f"{device.host}, {device.label}"
            parts.append(_text(_LEFT - 6, y + min(band, 14) - 3, label, size=10, anchor="end"))
        there = sorted(
            (each for each in outcomes if device.id in each.devices),
            key=lambda each: (each.started_at_s, each.finished_at_s),
        )
        free_at_s = [begin_s] * lanes
        for each in there:
            free = [n for n in range(lanes) if free_at_s[n] <= each.started_at_s + 1e-6]
            where = free[0] if free else lanes - 1
            free_at_s[where] = each.finished_at_s
            x, right = (
                _x(moment, begin_s, end_s) for moment in (each.started_at_s, each.finished_at_s)
            )
            parts.append(
                f'<rect x="{x:.2f}" y="{y + where * lane}" width="{max(0.5, right - x):.2f}" '
                f'height="{lane - 1 if lane > 3 else lane}" fill="{colours[each.submission.kind]}">'
                f"<title>{escape(_words(each))}</title></rect>"
            )
    bottom = top + _TITLE + band * len(devices)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        moment = begin_s + share * (end_s - begin_s)
        parts.append(
            _text(
                _x(moment, begin_s, end_s),
                bottom + 14,
                duration(moment - begin_s) or "",
                size=10,
                anchor="middle",
            )
        )
    return parts, height


def _words(each: Outcome) -> str:
    beside = f", beside {listing(each.partners)}" if each.partners else ""
    return (
        f"{each.submission.name}: {each.started_at_s:.1f} s to {each.finished_at_s:.1f} s, JCT "
        f"{each.served.jct_s:.1f} s{beside}"
    )


def _distribution(jcts: Mapping[str, Sequence[float]], top: int) -> list[str]:
    """Return for each policy which share of the trainings was done within which JCT."""
    parts = [_text(_LEFT, top + 16, "JCT: share of trainings done within", size=14)]
    values = [value for sequence in jcts.values() for value in sequence if value > 0]
    if not values:
        return parts
    low, high = min(values), max(values)
    wide = high > 50 * low
    low = low if wide else 0.0
    y_top, y_bottom = top + _TITLE, top + _CURVES - _AXIS

    def x(value: float) -> float:
        if wide:
            return _x(math.log(max(value, low)), math.log(low), math.log(high))
        return _x(value, low, high)

    def y(share: float) -> float:
        return y_bottom - share * (y_bottom - y_top)

    for share in (0.0, 0.5, 0.95, 1.0):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" '
            'stroke="#dddddd"/>'
        )
        parts.append(_text(_LEFT - 6, y(share) + 4, f"{share:.0%}", size=10, anchor="end"))
    for step in range(5):
        at = low * (high / low) ** (step / 4) if wide else low + (high - low) * step / 4
        parts.append(_text(x(at), y_bottom + 14, duration(at) or "", size=10, anchor="middle"))
    for number, (policy, sequence) in enumerate(jcts.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{x(value):.2f},{y((place + 1) / len(sequence)):.2f}"
            for place, value in _thinned(sequence)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        parts.append(
            _text(
                _WIDTH - _RIGHT - 4,
                y_bottom - 8 - 14 * number,
                policy,
                size=11,
                anchor="end",
                fill=colour,
            )
        )
    return parts


def _thinned(sequence: Sequence[float], most: int = 500) -> Iterable[tuple[int, float]]:
    step = max(1, len(sequence) // most)
    places = sorted({*range(0, len(sequence), step), len(sequence) - 1})
    return ((place, sequence[place]) for place in places)


def _x(value: float, low: float, high: float) -> float:
    inside = _WIDTH - _LEFT - _RIGHT
    return _LEFT + inside * ((value - low) / (high - low) if high > low else 0.0)


def _colours(kinds: Iterable[str]) -> dict[str, str]:
    """Give kinds hues that stay apart, whatever their number."""
    return {
        kind: f"hsl({number * 137.508 % 360:.0f}, 55%, 55%)"
        for number, kind in enumerate(sorted(set(kinds)))
    }


def _text(
    x: float, y: float, words: str, *, size: int, anchor: str = "start", fill: str = "#222222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(words)}</text>"
    )
