"""Run one training as infrastructure of its own: the program between worker and training.

Started by path with `python -I -S`, so it imports nothing but the standard library and costs a few
MiB. It reads what to run as JSON from standard input (nothing secret touches the disk), runs it
with its output in a file, and writes `exit.json` when it has ended. It is a child subreaper:
processes that the training orphans become its children, are reaped here, and it ends last. It
needs no worker to live on.

    {"command": [...], "environment": {...}, "working_directory": "...",
     "run_directory": "...", "processors": [0] or null}
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_PARTIAL = "exit.tmp"
_EXIT_CHARACTERS = 128


def _make_room_for_exit(run_directory: Path) -> None:
    """Take the room of the exit file in advance: the disk may be full by then."""
    with contextlib.suppress(OSError):
        (run_directory / _PARTIAL).write_text(" " * _EXIT_CHARACTERS)


def _write_exit(run_directory: Path, exit_code: int) -> None:
    partial = run_directory / _PARTIAL
    text = json.dumps({"exit_code": exit_code, "ended_at_s": time.time()})
    # Without an exit file the run still ends: its worker sees that its processes are gone.
    with contextlib.suppress(OSError):
        with partial.open("r+" if partial.exists() else "w") as file:
            file.write(text.ljust(_EXIT_CHARACTERS))
        partial.replace(run_directory / "exit.json")


def _output(run_directory: Path) -> IO[bytes]:
    """Open the output file; a training may also run where there is no room for one."""
    try:
        return (run_directory / "output.log").open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


def _reap(command_pid: int, run_directory: Path) -> int:
    """Reap the command and whatever it orphans until nobody is left; return its exit code."""
    exit_code = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid == command_pid:
                exit_code = os.waitstatus_to_exitcode(status)
                _write_exit(run_directory, exit_code)
    return exit_code


def main() -> int:
    """Run the command; return its exit code."""
    spec = json.load(sys.stdin)
    run_directory = Path(spec["run_directory"])
    _make_room_for_exit(run_directory)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if spec["processors"] is not None:
        os.sched_setaffinity(0, spec["processors"])
    with _output(run_directory) as output:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            command = subprocess.Popen(
                spec["command"], env=spec["environment"], cwd=spec["working_directory"]
            )
        except OSError as error:
            where = f"{spec['command'][0]!r} in {spec['working_directory']!r}"
            print(f"Could not start {where}: {error}", file=sys.stderr)  # noqa: T201
            _write_exit(run_directory, 127)
            return 127

        def pass_on(number: int, _frame: object) -> None:
            # Not after it was reaped: its process id may by then be somebody else's.
            if not (run_directory / "exit.json").exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command.pid, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        return _reap(command.pid, run_directory)


if __name__ == "__main__":
    sys.exit(main() & 0xFF)
