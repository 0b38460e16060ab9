"""Columns of a CSV file that nobody reads: they may be misspelt."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path


def unread_columns(path: Path, known: Sequence[str]) -> str | None:
    """Name the columns that are not read, with those that may be meant; None without any.

    Args:
        path: A file that was read without an error.
        known: The columns that are read where they are there.
    """
    if not path.is_file():
        return None  # a pipe gives what it has only once
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = [column.strip() for column in next(csv.reader(file), [])]
    missing = [column for column in known if column not in header]
    unread = [column for column in header if column and column not in known]
    if not unread:
        return None
    named = ", ".join(_with_likely(column, missing) for column in unread)
    return f"Columns of {path.name} that are not read: {named}."


def _with_likely(column: str, missing: Sequence[str]) -> str:
    likely = [each for each in missing if len(column) > 2 and each.startswith(column.lower())]
    likely += difflib.get_close_matches(column.lower(), missing, n=1)
    return f"{column} (did you mean {likely[0]}?)" if likely else column
