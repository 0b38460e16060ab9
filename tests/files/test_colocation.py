from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.errors import FileContentError
from xonar_prefect.files.colocation import COLUMNS, Colocations, read_colocations


def read(tmp_path: Path, *lines: str) -> Colocations:
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    return read_colocations(path, {"a", "b"})


def test_each_side_of_a_pair_has_its_throughput(tmp_path: Path) -> None:
    found = read(tmp_path, "V100,b,a,0.8,0.5,0")
    assert found.throughputs == {("V100", "b", "a"): 0.8, ("V100", "a", "b"): 0.5}
    assert found.rows == {"V100": 1}


def test_a_pair_that_ran_out_of_memory_needs_no_throughput(tmp_path: Path) -> None:
    found = read(tmp_path, "V100,b,a,,,1")
    assert found.clashes == {("V100", "a", "b")}
    assert found.throughputs == {}


def test_an_empty_throughput_is_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, "V100,a,b,0.8,,").throughputs == {("V100", "a", "b"): 0.8}


def test_rows_that_say_nothing_or_of_a_gain_are_counted(tmp_path: Path) -> None:
    found = read(tmp_path, "V100,a,b,,,", "T4,a,b,1.1,0.9,0", "T4,a,a,1,1,", "T4,b,b,,,1")
    assert +found.empty == {"V100": 1}
    assert +found.faster == {"T4": 1}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("V100,a,z,1,1,0", "column 'training_b' is 'z', of which there is no profile"),
        ("V100,b,a,1,1,0", "column 'training_a' and training_b repeat the pair of line 2"),
        ("V100,a,a,0.8,0.7,0", "column 'normalised_throughput_b' differs from that of a"),
        ("V100,a,a,0,0,0", "column 'normalised_throughput_a' is '0'; it must be greater than"),
        ("V100,a,a,1,nan,0", "column 'normalised_throughput_b' is 'nan'"),
        ("V100,a,a,1,1,yes", "column 'out_of_memory' is 'yes'; it must be 0 or 1"),
        (",a,a,1,1,0", "column 'gpu_model' is empty"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(FileContentError, match=rf"pairs\.csv, line 3: {complaint}"):
        read(tmp_path, "V100,a,b,0.8,0.5,0", line)
