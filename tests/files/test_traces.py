from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xonar_prefect.core.simulation import Submission
from xonar_prefect.errors import FileContentError
from xonar_prefect.files.traces import COLUMNS, read_trace


def read(
    tmp_path: Path, *lines: str, more: str = "", draw: Callable[[], str] | None = None
) -> dict[str, list[Submission]]:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([",".join(COLUMNS) + more, *lines]))
    return read_trace(path, {"a", "b"}, draw)


def test_a_row_is_a_submission(tmp_path: Path) -> None:
    assert read(tmp_path, "5.5,a,100,4") == {
        "": [Submission(name="a #1", kind="a", submitted_at_s=5.5, solo_seconds=100.0, gpus=4)]
    }


def test_rows_of_one_queue_belong_together(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "0,a,1,1,q1,2,ada",
        "0,b,1,1,q0,,",
        "9,b,1,1,q1,,",
        more=",queue,priority,owner",
    )
    assert {name: [each.kind for each in queue] for name, queue in found.items()} == {
        "q1": ["a", "b"],
        "q0": ["b"],
    }
    assert (found["q1"][0].priority, found["q1"][0].owner) == (2, "ada")
    assert (found["q1"][1].priority, found["q1"][1].owner) == (1, None)


def test_an_unnamed_training_is_drawn_only_when_asked_for(tmp_path: Path) -> None:
    (drawn,) = read(tmp_path, "0,,1,1", draw=lambda: "b")[""]
    assert drawn.kind == "b"
    with pytest.raises(
        FileContentError, match=r"line 2: column 'training' is empty; .*--draw-from"
    ):
        read(tmp_path, "0,,1,1")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("-1,a,1,1", "column 'submit_s' is '-1'; it must be zero or greater"),
        ("nan,a,1,1", "column 'submit_s' is 'nan'; it must be a finite number"),
        (",a,1,1", "column 'submit_s' is empty"),
        ("0,a,-3,1", "column 'solo_duration_s' is '-3'"),
        ("0,a,,1", "column 'solo_duration_s' is empty"),
        ("0,a,1,", "column 'gpus' is empty"),
        ("0,a,1,0", "column 'gpus' is '0'; it must be a whole number of at least 1"),
        ("0,a,1,1.5", "column 'gpus' is '1.5'; it must be a whole number"),
        ("0,z,1,1", "column 'training' is 'z', of which there is no profile"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(FileContentError, match=rf"trace\.csv, line 3: {complaint}"):
        read(tmp_path, "0,a,1,1", line)
