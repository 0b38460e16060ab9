from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.errors import FileContentError, FileUnreadableError
from xonar_prefect.files.rows import Row, read_rows


def rows(tmp_path: Path, text: str | bytes, *required: str) -> list[Row]:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_rows(path, required or ("a", "b")))


def test_rows_have_cells_by_column_and_know_their_line(tmp_path: Path) -> None:
    first, second = rows(tmp_path, "b,a,c\n 1 ,x,\n\n2,y,z\n")
    assert (first.line, first.cells) == (2, {"b": "1", "a": "x", "c": ""})
    assert (second.line, second.text("a")) == (4, "y")


def test_a_quoted_cell_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, 'a,b\n"x,\ny",1\n')
    assert (row.line, row.text("a")) == (3, "x,\ny")


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "\ufeffa,b\n1,2\n")
    assert row.text("a") == "1"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"line 1: must be a header with the columns a, b\."),
        ("\n1,2\n", r"line 1: must be a header"),
        ("a,c\n1,2\n", r"line 1: column 'b' is missing from the header, which is a, c\."),
        ("a,b,a\n1,2,3\n", r"line 1: column 'a' stands twice in the header\."),
        ("a,b\n", r"line 1: is the end; there is no row below the header\."),
        ("a,b\n1,2\n3\n", r"line 3: has 1 cells, but the header has 2\."),
        ("a,b\n1,2,3\n", r"line 2: has 3 cells, but the header has 2\."),
        ('a,b\n1,"2\n', r"line 2: is no CSV"),
    ],
)
def test_what_is_no_table_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(FileContentError, match=rf"rows\.csv, {complaint}"):
        rows(tmp_path, text)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadableError, match=r"Cannot read .*missing.csv: No such file"):
        list(read_rows(tmp_path / "missing.csv", ["a"]))
    with pytest.raises(FileUnreadableError, match="Is a directory"):
        list(read_rows(tmp_path, ["a"]))
    with pytest.raises(FileUnreadableError, match="not text in UTF-8"):
        rows(tmp_path, b"a,b\n\xff\xfe,1\n")


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("fast", "is 'fast', which is not a number"),
        ("nan", "is 'nan'; it must be a finite number"),
        ("-inf", "is '-inf'; it must be a finite number"),
        ("-1", "is '-1'; it must be zero or greater"),
        ("", "is empty"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, cell: str, complaint: str) -> None:
    (row,) = rows(tmp_path, f"a,b\n{cell},x\n")
    with pytest.raises(FileContentError, match=rf"rows\.csv, line 2: column 'a' {complaint}\."):
        row.number("a")


def test_numbers_may_have_to_be_positive_or_whole(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "a,b\n0,1.5\n")
    assert row.number("a") == 0.0
    with pytest.raises(FileContentError, match="greater than zero"):
        row.number("a", positive=True)
    with pytest.raises(FileContentError, match="a whole number of at least 1"):
        row.optional_count("b", least=1)
    with pytest.raises(FileContentError, match="a whole number of at least 1"):
        row.optional_count("a", least=1)


def test_an_empty_cell_is_unknown(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "a,b\n,x\n")
    assert row.optional_number("a") is None
    assert row.optional_text("a") is None
    assert row.optional_count("a", least=0) is None
