from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.models import Profile
from xonar_prefect.errors import FileContentError
from xonar_prefect.files.profiles import COLUMNS, profile_of, read_profiles, row_of
from xonar_prefect.files.rows import Row


def read(tmp_path: Path, *lines: str) -> dict[str, dict[str, Profile]]:
    path = tmp_path / "profiles.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    return read_profiles(path)


def test_times_become_an_active_fraction_and_a_step(tmp_path: Path) -> None:
    assert read(tmp_path, "bert,V100,160,40,200,8192") == {
        "bert": {
            "V100": Profile(
                key="bert",
                device_model="V100",
                active_fraction=0.8,
                step_seconds=0.2,
                peak_memory_mib=8192,
            )
        }
    }


@pytest.mark.parametrize("cells", ["160,40,", "160,,200", ",40,200", "160,40,200.4"])
def test_two_of_the_three_times_are_enough_and_rounding_is_no_contradiction(
    tmp_path: Path, cells: str
) -> None:
    profile = read(tmp_path, f"bert,V100,{cells},")["bert"]["V100"]
    assert profile.active_fraction == pytest.approx(0.8)
    assert profile.step_seconds == pytest.approx(0.2, rel=0.01)
    assert profile.peak_memory_mib is None


def test_an_empty_cell_is_unknown_and_never_zero(tmp_path: Path) -> None:
    found = read(tmp_path, "a,V100,,,121.5,", "b,V100,,,,", "c,V100,10,,,")
    assert [found[kind]["V100"].active_fraction for kind in "abc"] == [None, None, None]
    assert [found[kind]["V100"].step_seconds for kind in "abc"] == [0.1215, None, None]


def test_a_training_may_have_a_profile_on_each_model(tmp_path: Path) -> None:
    found = read(tmp_path, "a,V100,1,1,2,", "a,K80,4,1,5,")
    assert {model: each.active_fraction for model, each in found["a"].items()} == {
        "V100": 0.5,
        "K80": 0.8,
    }


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (",V100,1,1,2,", "column 'training' is empty"),
        ("a,,1,1,2,", "column 'gpu_model' is empty"),
        ("a,V100,1,1,5,", "column 'step_ms' is 5, but active_ms and idle_ms add up to 2"),
        ("a,V100,9,,5,", "column 'step_ms' is 5, which is less than a part of it"),
        ("a,V100,0,0,,", "column 'active_ms' and idle_ms are both zero"),
        ("a,V100,1,1,0,", "column 'step_ms' is '0'; it must be greater than zero"),
        ("a,V100,1,1,2,0", "column 'peak_memory_mib' is '0'; it must be greater than zero"),
        ("a,V100,-1,1,2,", "column 'active_ms' is '-1'; it must be zero or greater"),
        ("first,V100,1,1,2,", "column 'training' repeats 'first' on 'V100' of line 2"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(FileContentError, match=rf"profiles\.csv, line 3: {complaint}"):
        read(tmp_path, "first,V100,1,1,2,", line)


fractions = st.floats(0.001, 0.999)


@given(fractions, st.floats(1e-4, 100), st.none() | st.integers(1, 10**6))
def test_what_is_written_is_read_again(fraction: float, step: float, peak: int | None) -> None:
    profile = Profile(
        key="k",
        device_model="m",
        active_fraction=fraction,
        step_seconds=step,
        peak_memory_mib=peak,
    )
    again = profile_of(Row(Path("x"), 2, row_of(profile)))
    assert again.active_fraction == pytest.approx(fraction)
    assert again.step_seconds == pytest.approx(step)
    assert again.peak_memory_mib == peak


def test_the_unknown_is_written_as_an_empty_cell() -> None:
    cells = row_of(Profile(key="k", device_model="m", active_fraction=0.5))
    assert cells == dict.fromkeys(COLUMNS, "") | {"training": "k", "gpu_model": "m"}
