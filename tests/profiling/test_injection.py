"""Interpreters that watch themselves: what they are told, where they report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from xonar_prefect.profiling.injection import Orders, has_room, reports_directory, watched
from xonar_prefect.profiling.reports import read_statuses, read_unwatched

STEPS = "list(xonar_prefect.steps(range(7)))"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def steps_seen(program: str) -> list[int]:
    """Return the steps that an interpreter with this program reports."""
    with reports_directory(Orders(starter=os.getpid())) as directory:
        assert directory is not None
        subprocess.run(
            [sys.executable, "-c", program], env=watched(os.environ, directory), check=True
        )
        return [status.steps_done for status in read_statuses(directory)]


def test_what_it_trains_with_may_be_imported_in_any_way() -> None:
    module = "__import__('importlib').import_module('xonar_prefect')"
    for program in (
        f"import xonar_prefect; {STEPS}",
        f"xonar_prefect = {module}; {STEPS}",
        "from xonar_prefect import steps; list(steps(range(7)))",
    ):
        assert steps_seen(program) == [7]


def test_an_import_that_fails_leaves_the_next_one_watched(temporary: Path) -> None:
    (temporary / "torch.py").write_text("raise RuntimeError('its library is missing')")
    program = f"""
import sys
sys.path.insert(0, {str(temporary)!r})
for name in ("jax_is_not_there", "torch"):
    try:
        __import__(name)
    except (ImportError, RuntimeError):
        pass
import xonar_prefect
{STEPS}
"""
    assert steps_seen(program) == [7]


def test_one_framework_that_imports_another_is_watched_once(temporary: Path) -> None:
    (temporary / "keras.py").write_text("import torch")
    (temporary / "torch.py").write_text("")
    program = f"""
import sys, threading
sys.path.insert(0, {str(temporary)!r})
import keras
assert len([each for each in threading.enumerate() if each.name == "xonar-report"]) == 1
"""
    assert steps_seen(program) == []


def test_a_module_whose_loader_is_of_another_kind_is_imported_all_the_same() -> None:
    program = f"""
import sys
from importlib.machinery import ModuleSpec
class Loader:
    __slots__ = ()
    def create_module(self, spec): return None
    def exec_module(self, module): module.steps = lambda items: items
class Finder:
    def find_spec(self, name, *_): return ModuleSpec(name, Loader()) if name == "torch" else None
sys.meta_path.insert(1, Finder())
import torch
assert torch.steps(range(2)) == range(2)
import xonar_prefect
{STEPS}
"""
    assert steps_seen(program) == [7]


def test_modules_beside_the_script_with_names_that_we_need_stay_the_scripts_own(
    temporary: Path,
) -> None:
    (temporary / "resource.py").write_text("import sys; sys.exit(3)")
    (temporary / "statistics.py").write_text("NUMBER = 8")
    (temporary / "torch.py").write_text("NUMBER = 7")
    program = f"""
import sys
sys.path.insert(0, {str(temporary)!r})
import torch, statistics
assert (torch.NUMBER, statistics.NUMBER) == (7, 8)
import xonar_prefect
{STEPS}
"""
    assert steps_seen(program) == [7]


@pytest.mark.parametrize(
    "fault",
    [
        "import not_there_at_all",
        "from os import not_there_at_all",
        "raise OSError('its library is missing')",
    ],
)
def test_a_framework_that_cannot_be_imported_fails_with_the_same_traceback(
    temporary: Path, fault: str
) -> None:
    (temporary / "torch.py").write_text(f"def load():\n    {fault}\nload()")
    program = f"import sys; sys.path.insert(0, {str(temporary)!r}); import torch"
    with reports_directory(Orders(starter=os.getpid())) as directory:
        assert directory is not None
        plain, as_watched = (
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            for environment in (dict(os.environ), watched(os.environ, directory))
        )
    assert plain.returncode == as_watched.returncode == 1
    assert as_watched.stderr == plain.stderr


def test_why_a_process_could_not_be_watched_is_noted(temporary: Path) -> None:
    (temporary / "torch.py").write_text("")
    (temporary / "psutil.py").write_text("print('mine')")
    program = f"""
import sys
sys.path.insert(0, {str(temporary)!r})
import torch, psutil
print("trained")
"""
    with reports_directory(Orders(starter=os.getpid())) as directory:
        assert directory is not None
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=watched(os.environ, directory),
            capture_output=True,
            text=True,
            check=True,
        )
        (reason,) = read_unwatched(directory)
    assert (done.stdout, done.stderr) == ("mine\ntrained\n", "")
    assert reason.startswith(f"{sys.executable}: ")
    assert "a module of the script is called 'psutil'" in reason


def test_orders_are_read_as_they_were_given() -> None:
    orders = Orders(starter=7, measure=False, memory_limit_mib=4000)
    with reports_directory(orders) as directory:
        assert directory is not None
        assert Orders.read(directory) == orders
        assert has_room(directory)
    assert not directory.exists()
    assert not has_room(directory)


def test_what_a_killed_process_left_behind_is_removed_after_a_day(temporary: Path) -> None:
    gone, living = 2**22 + 1, os.getpid()  # the first is above the kernel's highest process id
    left = [temporary / f"xonar-profile-{pid}-abc" for pid in (gone, living)]
    young = temporary / f"xonar-profile-{gone}-young"
    for directory in (*left, young):
        directory.mkdir()
    two_days_ago = time.time() - 2 * 86400
    for directory in left:
        os.utime(directory, (two_days_ago, two_days_ago))
    with reports_directory(Orders(starter=1)):
        assert [each.exists() for each in (*left, young)] == [False, True, True]


def test_without_room_nobody_is_watched(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with reports_directory(Orders(starter=1)) as directory:
        assert directory is None
