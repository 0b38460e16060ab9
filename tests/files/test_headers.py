from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.files.headers import unread_columns
from xonar_prefect.files.traces import COLUMNS, OPTIONAL_COLUMNS


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("prio", "prio (did you mean priority?)"),
        ("Owners,queue", "Owners (did you mean owner?)"),
        ("colour,priority", "colour"),
        ("colour,Queue", "colour, Queue (did you mean queue?)"),
    ],
)
def test_columns_that_nobody_reads_are_named_with_the_likely_one(
    tmp_path: Path, columns: str, named: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{','.join(COLUMNS)},{columns}\n")
    expected = f"Columns of trace.csv that are not read: {named}."
    assert unread_columns(path, (*COLUMNS, *OPTIONAL_COLUMNS)) == expected


def test_nothing_is_said_where_all_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{','.join(COLUMNS)},priority\n")
    assert unread_columns(path, (*COLUMNS, *OPTIONAL_COLUMNS)) is None
