"""What people see on a run's page: the profile card and the reasons of a decision, as markdown.

The two UIs of Prefect strip inline SVG, styles and scripts, so pictures are `data:` images with a
background of their own, and every name that comes from users is escaped for where it stands.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xonar_prefect.core.decisions import (
    Alternative,
    Decision,
    Hold,
    Release,
)
from xonar_prefect.core.models import Profile

UNKNOWN = "-"
_WIDTH, _BAR_HEIGHT = 640, 34
_INK, _PALE, _GROUND = "#1f2933", "#52606d", "#ffffff"
COLOURS = {
    "active": "#2f6fde",
    "communication": "#e0a526",
    "input": "#3aa17e",
    "other idle": "#cbd2d9",
    "idle": "#cbd2d9",
}
# As precise as a window asks for, which is what policies rely on.
_TRUSTED_HALF_WIDTH, _TRUSTED_STEPS = 0.05, 10
_MARKDOWN_SPECIAL = re.compile(r"(^[-+#]|[\\`*_{}\[\]<>|~])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An artifact for people: its markdown, and one short sentence for lists."""

    markdown: str
    description: str


def profile_card(training: str, profile: Profile, *, measured_step_seconds: float | None) -> Card:
    """Show a profile.

    Args:
        training: Name of the training.
        profile: What was measured.
        measured_step_seconds: Step time as it was measured; for a joint profile that is the time
            beside a partner, which is no time of the training alone.
    """
    figures = [
        percent(profile.active_fraction) + " active",
        seconds(profile.step_seconds) + " a step",
        mebibytes(profile.peak_memory_mib) + " peak",
    ]
    rows = [
        (
            "Active fraction",
            percent(profile.active_fraction),
            _range(profile.active_fraction_interval, percent),
        ),
        ("Communication", percent(profile.communication_fraction), ""),
        ("Waiting for input", percent(profile.input_fraction), ""),
        ("Other idle time", percent(profile.other_fraction), ""),
        (
            "Time of a step",
            seconds(profile.step_seconds),
            _range(profile.step_seconds_interval, seconds),
        ),
        ("Peak memory", mebibytes(profile.peak_memory_mib), escape(profile.memory_source or "")),
        ("Steps measured", str(profile.steps), ""),
        ("Device", escape(profile.device or UNKNOWN), escape(profile.device_model)),
        ("Active time from", escape(profile.source or UNKNOWN), escape(profile.framework or "")),
        ("Profile key", f"`{profile.key}`", ""),
    ]
    notes = [confidence(profile), meaning(profile)]
    if profile.joint:
        notes.append(
            f"Measured beside a partner, where a step took {seconds(measured_step_seconds)}: how "
            "active it is alone, and how long a step takes alone, is not known yet."
        )
    picture = _image(_profile_svg(training, profile), "Profile: " + ", ".join(figures))
    return Card(
        markdown="\n\n".join(
            [
                f"# Profile of {escape(training)}",
                picture,
                table(("", "Measured", "95 % interval, source"), rows),
                *notes,
            ]
        ),
        description=", ".join(figures) + f" ({profile.steps} steps).",
    )


def missing_profile_card(training: str, problem: str) -> Card:
    """Show that there is no profile, and why; `problem` is a sentence."""
    return Card(
        markdown=f"# No profile of {escape(training)}\n\n{escape(problem)}\n\n"
        "The training itself went on undisturbed. Until it has a profile, it gets a device to "
        "itself.",
        description=f"No profile: {problem}",
    )


def meaning(profile: Profile) -> str:
    """Say in one sentence what the profile means for sharing a device."""
    active = profile.active_fraction
    if active is None:
        return "How active it is, is not known, so nothing can be said about partners."
    # Two trainings with active fractions u and v slow down by 1 + u v; up to 1.25 is little.
    partner = 1.0 if active == 0 else min(1.0, 0.25 / active)
    if partner >= 1.0:
        return f"{percent(active)} active: pairs well with any training that fits in memory."
    return f"{percent(active)} active: pairs well with trainings below {percent(partner)}."


def confidence(profile: Profile) -> str:
    """Say in one sentence how far the active fraction of a profile can be trusted."""
    active, interval = profile.active_fraction, profile.active_fraction_interval
    if active is None:
        return "Confidence: none, the active fraction was not measured."
    if profile.steps == 0:
        return (
            "Confidence: low. No step was measured, so this is an estimate from the processor time "
            "of all processes, from start to end."
        )
    if interval is None:
        return f"Confidence: low, with {_steps(profile.steps)} measured."
    half = (interval[1] - interval[0]) / 2
    spread = f"active \u00b1{half * 100:.0f} % (95 %) over {_steps(profile.steps)}"
    if half <= _TRUSTED_HALF_WIDTH and profile.steps >= _TRUSTED_STEPS:
        return f"Confidence: high, {spread}."
    if half <= 2 * _TRUSTED_HALF_WIDTH:
        return f"Confidence: medium, {spread}; a longer run would tell more."
    return (
        f"Confidence: low, {spread}; its steps differ much, there were few, or others had its core."
    )


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def decision_markdown(decision: Decision) -> str:
    """Show why a training was released, held or refused, and what was weighed."""
    training = escape(decision.training.name)
    if isinstance(decision, Release):
        where = ", ".join(decision.devices) or "no device"
        title = f"# {training} was released to {escape(where)}"
    elif isinstance(decision, Hold):
        title = f"# {training} is held"
    else:
        title = f"# {training} was refused"
    parts = [title, escape(decision.reason), f"Reason code: `{decision.code.value}`"]
    if isinstance(decision, Release):
        facts = [
            ("Memory reserved on each device", mebibytes(decision.request_mib)),
            ("Predicted slowdown", factor(decision.predicted_slowdown)),
            ("Partners", escape(", ".join(decision.partners)) or "none"),
        ]
        parts.append(table(("", "This release"), facts))
    if decision.alternatives:
        parts += ["## What else was weighed", _alternatives(decision.alternatives)]
    return "\n\n".join(parts)


def _alternatives(alternatives: Sequence[Alternative]) -> str:
    return table(
        ("Candidate", "Device", "Predicted slowdown", "Verdict", "Why"),
        [
            (
                escape(alternative.candidate),
                escape(alternative.device),
                factor(alternative.predicted_slowdown),
                f"`{alternative.code.value}`",
                escape(alternative.reason),
            )
            for alternative in alternatives
        ],
    )


# Figures as text; unknown is a dash


def percent(fraction: float | None) -> str:
    """Write a fraction as whole per cent."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def seconds(value: float | None) -> str:
    """Write a duration with three significant digits."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{_significant(value * 1000)} ms"
    return f"{_significant(value)} s"


def mebibytes(value: int | None) -> str:
    """Write an amount of memory."""
    return UNKNOWN if value is None else f"{value:,} MiB".replace(",", "\u202f")


def factor(value: float | None) -> str:
    """Write a slowdown."""
    return UNKNOWN if value is None else f"{value:.2f}"


def _significant(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _range(interval: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    if interval is None:
        return UNKNOWN
    return f"{write(interval[0])} to {write(interval[1])}"


# Markdown and SVG


def escape(text: str) -> str:
    """Escape text for markdown, also within a table cell; it cannot become a tag or a link."""
    plain = " ".join(text.split())
    return _MARKDOWN_SPECIAL.sub(r"\\\1", plain.replace("&", "&amp;"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a GitHub table of cells that are markdown already."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    lines.insert(1, "|" + " --- |" * len(header))
    return "\n".join(lines)


def _image(svg: str, alternative_text: str) -> str:
    data = base64.b64encode(svg.encode()).decode("ascii")
    return f"![{escape(alternative_text)}](data:image/svg+xml;base64,{data})"


def shares(profile: Profile) -> list[tuple[str, float]]:
    """Return what a step consists of, as far as that is known, by the names of the card."""
    active = profile.active_fraction
    if active is None:
        return []
    communication, waiting = profile.communication_fraction, profile.input_fraction
    other = profile.other_fraction
    if communication is None or waiting is None or other is None:
        return [("active", active), ("idle", 1.0 - active)]
    return [
        ("active", active),
        ("communication", communication),
        ("input", waiting),
        ("other idle", other),
    ]


def _profile_svg(training: str, profile: Profile) -> str:
    left, top = 20.0, 52.0
    inner = _WIDTH - 2 * left
    parts = [
        _text(left, 30, _shortened(training), size=18, weight=600),
        f'<rect x="{left}" y="{top}" width="{inner}" height="{_BAR_HEIGHT}" fill="#eef1f4"/>',
    ]
    position, legend = left, left
    for name, share in shares(profile):
        width = inner * share
        parts.append(
            f'<rect x="{position:.1f}" y="{top}" width="{width:.1f}" height="{_BAR_HEIGHT}" '
            f'fill="{COLOURS[name]}"/>'
        )
        position += width
        label = f"{name} {percent(share)}"
        parts.append(
            f'<rect x="{legend:.0f}" y="102" width="12" height="12" fill="{COLOURS[name]}"/>'
            + _text(legend + 18, 113, label)
        )
        legend += 44 + 7.2 * len(label)
    if profile.active_fraction is None:
        parts.append(_text(left + 10, top + 22, "active fraction unknown", colour=_PALE))
    step = f"step {seconds(profile.step_seconds)}"
    if profile.step_seconds_interval:
        step += f" (95 %: {_range(profile.step_seconds_interval, seconds)})"
    parts.append(_text(left, 146, step, size=15))
    parts.append(_text(390, 146, f"peak memory {mebibytes(profile.peak_memory_mib)}", size=15))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="166" '
        f'viewBox="0 0 {_WIDTH} 166" font-family="system-ui, sans-serif">'
        f'<rect width="{_WIDTH}" height="166" fill="{_GROUND}"/>{"".join(parts)}</svg>'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 14, weight: int = 400, colour: str = _INK
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{html.escape(text)}</text>'
    )


def _shortened(text: str, length: int = 60) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= length else plain[: length - 1] + "\u2026"
