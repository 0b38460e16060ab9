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

_PR_SET_CHILD_SUBREAPER = 36


def _write_exit(run_directory: Path, exit_code: int) -> None:
    partial = run_directory / "exit.tmp"
    partial.write_text(json.dumps({"exit_code": exit_code, "ended_at_s": time.time()}))
    partial.replace(run_directory / "exit.json")


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
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if spec["processors"] is not None:
        os.sched_setaffinity(0, spec["processors"])
    with (run_directory / "output.log").open("ab", buffering=0) as output:
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
