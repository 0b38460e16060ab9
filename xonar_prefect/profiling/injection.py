"""Has the Python interpreters that a command starts watch themselves and report."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

REPORTS_VARIABLE = "XONAR_PROFILE_REPORTS"
STARTER_VARIABLE = "XONAR_PROFILE_STARTER"
"""Names the process whose child is the command, with all that counts as its activity."""

_INJECTED = Path(__file__).parent / "injected"


@contextlib.contextmanager
def reports_directory() -> Iterator[Path | None]:
    """Make a directory for reports while the body runs; None where that is impossible."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="xonar-profile-"))
    except OSError:  # a full disk keeps nobody from training
        yield None
        return
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def watched(environment: Mapping[str, str], directory: Path, starter: int) -> dict[str, str]:
    """Return an environment whose interpreters report into a directory.

    Args:
        environment: As it would be.
        directory: Where they report.
        starter: The process that starts the command.
    """
    before = environment.get("PYTHONPATH")
    return {
        **environment,
        REPORTS_VARIABLE: str(directory),
        STARTER_VARIABLE: str(starter),
        "PYTHONPATH": f"{_INJECTED}{os.pathsep}{before}" if before else str(_INJECTED),
    }
