"""Queues as CSV: `submit_s, training, solo_duration_s, gpus`, and optionally more."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from xonar_prefect.core.simulation import Submission
from xonar_prefect.files.rows import Row, read_rows

COLUMNS = ("submit_s", "training", "solo_duration_s", "gpus")
OPTIONAL_COLUMNS = ("priority", "owner", "queue")


def read_trace(
    path: Path, trainings: Container[str], draw: Callable[[], str] | None = None
) -> dict[str, list[Submission]]:
    """Read queues by name, each in the order of its rows; without names, one queue named "".

    Args:
        path: The file.
        trainings: The trainings that have a profile.
        draw: Names a training for a row that has none; None: such a row is an error.

    Raises:
        FileUnreadableError: The file cannot be read.
        FileContentError: A row is wrong, or names a training without a profile.
    """
    queues: dict[str, list[Submission]] = {}
    for row in read_rows(path, COLUMNS):
        queue = queues.setdefault(row.optional_text("queue") or "", [])
        queue.append(_submission(row, len(queue), trainings, draw))
    return queues


def _submission(
    row: Row, number: int, trainings: Container[str], draw: Callable[[], str] | None
) -> Submission:
    kind = row.optional_text("training")
    if kind is None and draw is not None:
        kind = draw()
    if kind is None:
        raise row.wrong(
            "training", "is empty; name one, or have unknown ones drawn with --draw-from PATTERN"
        )
    if kind not in trainings:
        raise row.wrong("training", f"is {kind!r}, of which there is no profile")
    row.text("gpus")
    return Submission(
        name=f"{kind} #{number + 1}",
        kind=kind,
        submitted_at_s=row.number("submit_s"),
        solo_seconds=row.number("solo_duration_s"),
        gpus=row.optional_count("gpus", least=1) or 1,
        priority=row.optional_count("priority", least=1) or 1,
        owner=row.optional_text("owner"),
    )
