"""End whatever a demonstration started, as soon as the demonstration is gone.

It waits for its standard input to close: the demonstration closes it when it is done, and the
kernel does when the demonstration crashes or is killed. So there is one way to clean up, and it
needs nobody to be alive.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE

HOME_VARIABLE = "XONAR_DEMO_HOME"

_GRACE_SECONDS = 4.0
_GIVE_UP_SECONDS = 20.0
_LOOK_SECONDS = 0.1


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """Find the processes that were started for a demonstration, whoever their parent is.

    The server and the worker bear the home itself, trainings a run directory below it.
    """
    below = f"{home}{os.sep}"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get(HOME_VARIABLE) == str(home) or environment.get(
                RUN_DIRECTORY_VARIABLE, ""
            ).startswith(below):
                yield process


def end_processes(home: Path) -> bool:
    """End all processes of a demonstration; return whether none is left.

    They are asked first and killed after four seconds.
    """
    begun = time.monotonic()
    asked: set[psutil.Process] = set()
    while left := set(processes_of(home)):
        waited = time.monotonic() - begun
        if waited > _GIVE_UP_SECONDS:
            return False
        for process in left:
            with suppress(psutil.Error):
                if waited > _GRACE_SECONDS:
                    process.kill()
                elif process not in asked:
                    process.terminate()
        asked |= left
        time.sleep(_LOOK_SECONDS)
    return True


def main(home: Path, *, remove: bool) -> int:
    """Wait for the end of the demonstration and clean up; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demonstration
    sys.stdin.buffer.read()
    ended = end_processes(home)
    if remove:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), remove=sys.argv[2:] == ["--remove"]))
