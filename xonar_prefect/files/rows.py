"""CSV files with a header, read row by row; every problem names file, line and column.

Unknown columns are ignored, and an empty cell is unknown. Nothing is dropped silently: a row that
cannot be read is an error, and only lines without any text are skipped.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xonar_prefect.errors import FileContentError, FileUnreadableError


class Lines(Protocol):
    """What `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]:
        """Return itself."""
        ...

    def __next__(self) -> list[str]:
        """Return the cells of the next row."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One row, with where it stands.

    Attributes:
        path: The file.
        line: Number of its line; of its last, where a quoted cell goes over several.
        cells: Text by column, without surrounding blanks.
    """

    path: Path
    line: int
    cells: dict[str, str]

    def wrong(self, column: str, problem: str) -> FileContentError:
        """Return the error that says what is wrong with a cell."""
        return FileContentError(self.path, self.line, column, problem)

    def optional_text(self, column: str) -> str | None:
        """Return a cell's text; None where it is empty."""
        return self.cells.get(column) or None

    def text(self, column: str) -> str:
        """Return a cell's text.

        Raises:
            FileContentError: It is empty.
        """
        text = self.optional_text(column)
        if text is None:
            raise self.wrong(column, "is empty")
        return text

    def optional_number(self, column: str, *, positive: bool = False) -> float | None:
        """Return a cell's number; None where it is empty.

        Args:
            column: Which.
            positive: Whether zero is as wrong as what is negative.

        Raises:
            FileContentError: It is no finite number, or less than it may be.
        """
        text = self.optional_text(column)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            raise self.wrong(column, f"is {text!r}, which is not a number") from None
        if not math.isfinite(number):
            raise self.wrong(column, f"is {text!r}; it must be a finite number")
        if number < 0 or (positive and number == 0):
            least = "greater than zero" if positive else "zero or greater"
            raise self.wrong(column, f"is {text!r}; it must be {least}")
        return number

    def number(self, column: str, *, positive: bool = False) -> float:
        """Return a cell's number.

        Raises:
            FileContentError: It is empty, no finite number, or less than it may be.
        """
        self.text(column)
        number = self.optional_number(column, positive=positive)
        return 0.0 if number is None else number

    def optional_count(self, column: str, *, least: int) -> int | None:
        """Return a cell's whole number; None where it is empty.

        Raises:
            FileContentError: It is no whole number, or less than `least`.
        """
        number = self.optional_number(column)
        if number is None:
            return None
        if number != int(number) or number < least:
            text = self.cells[column]
            raise self.wrong(column, f"is {text!r}; it must be a whole number of at least {least}")
        return int(number)


def read_rows(path: Path, required: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file.

    Args:
        path: The file, in UTF-8.
        required: Columns that its header must have.

    Raises:
        FileUnreadableError: It cannot be opened or decoded.
        FileContentError: It has no header, lacks a required column, or a row has more or fewer
            cells than the header.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            try:
                yield from _rows(path, lines, required)
            except csv.Error as error:
                raise FileContentError(path, lines.line_num, None, f"is no CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise FileUnreadableError(path, f"it is not text in UTF-8: {error.reason}") from None
    except OSError as error:
        raise FileUnreadableError(path, error.strerror or str(error)) from None


def _rows(path: Path, lines: Lines, required: Sequence[str]) -> Iterator[Row]:
    header = [column.strip() for column in next(lines, [])]
    if not any(header):
        columns = ", ".join(required)
        raise FileContentError(path, 1, None, f"must be a header with the columns {columns}")
    for column in required:
        if column not in header:
            known = ", ".join(header)
            raise FileContentError(path, 1, column, f"is missing from the header, which is {known}")
    for column in header:
        if column in required and header.count(column) > 1:
            raise FileContentError(path, 1, column, "stands twice in the header")
    rows = 0
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        rows += 1
        if len(cells) != len(header):
            problem = f"has {len(cells)} cells, but the header has {len(header)}"
            raise FileContentError(path, lines.line_num, None, problem)
        named = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        yield Row(path, lines.line_num, named)
    if not rows:
        raise FileContentError(
            path, lines.line_num, None, "is the end; there is no row below the header"
        )
