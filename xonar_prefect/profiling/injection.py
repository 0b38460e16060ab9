"""Has the Python interpreters that a command starts watch themselves and report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

REPORTS_VARIABLE = "XONAR_PROFILE_REPORTS"

_INJECTED = Path(__file__).parent / "injected"
_ORDERS = "orders.json"
_PREFIX = "xonar-profile-"
_LEFT_BEHIND_SECONDS = 86400.0
_REPORT_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the interpreters are told that are to watch themselves.

    Attributes:
        starter: The process whose child is the command, with all that counts as its activity.
        measure: False to count steps only.
        memory_limit_mib: Cap of each process's allocator on each GPU; None for no cap.
    """

    starter: int
    measure: bool = True
    memory_limit_mib: int | None = None

    @classmethod
    def read(cls, directory: Path) -> Orders:
        """Read what they were told; raises OSError or ValueError."""
        return cls(**json.loads((directory / _ORDERS).read_text(encoding="utf-8")))


@contextlib.contextmanager
def reports_directory(orders: Orders) -> Iterator[Path | None]:
    """Make a directory for reports while the body runs; None where that is impossible."""
    directory = None
    try:
        _remove_left_behind()
        directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        (directory / _ORDERS).write_text(json.dumps(asdict(orders)), encoding="utf-8")
        usable = True
    except OSError:  # a full disk keeps nobody from training
        usable = False
    try:
        yield directory if usable else None
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def has_room(directory: Path) -> bool:
    """Tell whether a report can be written into a directory."""
    probe = directory / "probe"
    try:
        probe.write_bytes(bytes(_REPORT_BYTES))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def _remove_left_behind() -> None:
    """Remove directories of processes that were killed.

    Whose process is in another container looks gone too, so they are left alone for a day.
    """
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = directory.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            is_old = time.time() - directory.stat().st_mtime > _LEFT_BEHIND_SECONDS
            if is_old and owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(directory, ignore_errors=True)


def watched(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return an environment whose interpreters watch themselves.

    Args:
        environment: As it would be.
        directory: Where they find their orders and report.
    """
    before = environment.get("PYTHONPATH")
    return {
        **environment,
        REPORTS_VARIABLE: str(directory),
        "PYTHONPATH": f"{_INJECTED}{os.pathsep}{before}" if before else str(_INJECTED),
    }
