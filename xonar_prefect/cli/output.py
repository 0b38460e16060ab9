"""How commands print: tables for people, JSON for programs, "-" for the unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, Parameter(name="--json")]

UNKNOWN = "-"
# A measured fraction whose 95 % interval reaches further is marked.
UNCERTAIN_BY = 0.15


def say(sentence: str) -> None:
    """Print a sentence for people, as it is."""
    Console().print(Text(sentence))


def try_to_write(target: Path) -> None:
    """Find out whether a file can be written, and leave everything as it was.

    Of what is there and is no file, as a pipe is, nothing is tried: it would wait for its reader.

    Raises:
        OSError: It cannot.
    """
    is_new = not target.exists()
    if is_new or target.is_file() or target.is_dir():
        with target.open("a", encoding="utf-8"):
            pass
    if is_new:
        target.unlink()


def print_json(data: Any) -> None:
    """Print values as JSON, and nothing else."""
    Console().print_json(data=data)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | None]], *, empty: str
) -> None:
    """Print a table, or a sentence where there are no rows.

    Args:
        title: What the table shows.
        columns: Headings; one that ends in "|" is right-aligned.
        rows: Cells as text; None is unknown.
        empty: The sentence.
    """
    cells = [[Text(UNKNOWN if cell is None else cell) for cell in row] for row in rows]
    if not cells:
        say(empty)
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        right = column.endswith("|")
        table.add_column(column.rstrip("|"), justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def percent(fraction: float | None) -> str | None:
    """Write a fraction in per cent."""
    return None if fraction is None else f"{fraction:.0%}"


def is_uncertain(interval: tuple[float, float] | None) -> bool:
    """Tell whether the 95 % interval of a measured fraction is wide."""
    return interval is not None and interval[1] - interval[0] > 2 * UNCERTAIN_BY


def measured_percent(fraction: float | None, interval: tuple[float, float] | None) -> str | None:
    """Write a measured fraction in per cent, with a `~` where it is uncertain.

    >>> measured_percent(0.42, (0.4, 0.44)), measured_percent(0.42, (0.2, 0.9))
    ('42%', '~42%')
    """
    return None if fraction is None else f"{'~' if is_uncertain(interval) else ''}{fraction:.0%}"


def memory(mib: int | None) -> str | None:
    """Write an amount of memory given in MiB."""
    return None if mib is None else f"{mib:,} MiB"


def milliseconds(seconds: float | None) -> str | None:
    """Write a step time."""
    return None if seconds is None else f"{seconds * 1000:.1f} ms"


def duration(seconds: float | None) -> str | None:
    """Write how long something took or has been going on.

    >>> [duration(each) for each in (None, 5.4, 65, 3 * 3600 + 120)]
    [None, '5 s', '1 min 05 s', '3 h 02 min']
    """
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def device(device_id: str) -> str:
    """Shorten the UUID of a GPU, so that it still names one for CUDA.

    >>> device("GPU-8f3c1d2e-1111-2222-3333-444455556666"), device("cpu-3")
    ('GPU-8f3c1d2e', 'cpu-3')
    """
    return re.sub(r"^((?:GPU|MIG)-[0-9a-f]{8})-.*", r"\1", device_id)
