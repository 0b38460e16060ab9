"""Run one training as infrastructure of its own: the program between worker and training.

Started by path with `python -I -S`, so it imports nothing but the standard library and costs a few
MiB. It reads what to run as JSON from standard input (nothing secret touches the disk), runs it
with its output in a file, and writes `exit.json` when it has ended. It is a child subreaper:
processes that the training orphans become its children, are reaped here, and it ends last. It
needs no worker to live on.

    {"command": [...], "environment": {...}, "working_directory": "...",
     "run_directory": "...", "processors": [0] or null, "lock": "..." or null}

While the command runs, it and its launcher hold the run's lock: where another copy of the run is
alive, whoever started it, this one ends before it has touched anything.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

NOT_STARTED = 127  # like a shell
SECOND_COPY = 75  # EX_TEMPFAIL

_PR_SET_CHILD_SUBREAPER = 36
_LOCK_SECONDS = 1.0
_PARTIAL = "exit.tmp"
_EXIT_CHARACTERS = 192


def _output(run_directory: Path) -> IO[bytes]:
    """Open the output file; a training may also run where there is no room for one."""
    try:
        return (run_directory / "output.log").open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


def _oom_kills() -> "int | None":
    """Return how many processes the kernel has ended here for lack of memory; None if unknown."""
    with contextlib.suppress(OSError, IndexError):
        group = Path("/proc/self/cgroup").read_text().split("::", 1)[1].strip()
        files = [Path(f"/sys/fs/cgroup{group}/memory.events"), Path("/proc/vmstat")]
        for file in files:
            with contextlib.suppress(OSError):
                if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE):
                    return int(found[1])
    return None


class _Exit:
    """Writes how the command ended."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self.is_over = False
        self._oom_kills_before = _oom_kills()
        # Its room is taken in advance: the disk may be full by then.
        with contextlib.suppress(OSError):
            (run_directory / _PARTIAL).write_text(" " * _EXIT_CHARACTERS)

    def write(self, exit_code: int, *, second_copy: bool = False) -> None:
        self.is_over = True
        before, after = self._oom_kills_before, _oom_kills()
        values = {
            "exit_code": exit_code,
            "ended_at_s": time.time(),
            "oom_kills": None if before is None or after is None else max(0, after - before),
            "second_copy": second_copy,
        }
        partial = self._run_directory / _PARTIAL
        # Without an exit file the run still ends: its worker sees that its processes are gone.
        with contextlib.suppress(OSError):
            with partial.open("r+" if partial.exists() else "w") as file:
                file.write(json.dumps(values).ljust(_EXIT_CHARACTERS))
            partial.replace(self._run_directory / "exit.json")


def _lock(path: str) -> "int | None":
    """Take the run's lock; return its descriptor, or None while another copy has it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before may have removed the file while we waited: that lock is nobody's.
            if os.path.samestat(os.fstat(descriptor), Path(path).stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            # The last process of an earlier release may be on its way out.
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.1)
        os.close(descriptor)


def _reap(command_pid: int, ending: _Exit) -> int:
    """Reap the command and whatever it orphans until nobody is left; return its exit code."""
    exit_code = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid == command_pid:
                exit_code = os.waitstatus_to_exitcode(status)
                ending.write(exit_code)
    return exit_code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is the training's output


def main() -> int:
    """Run the command; return its exit code."""
    spec = json.load(sys.stdin)
    run_directory = Path(spec["run_directory"])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if spec["processors"] is not None:
        os.sched_setaffinity(0, spec["processors"])
    ending = _Exit(run_directory)
    with _output(run_directory) as output:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        lock = _lock(spec["lock"]) if spec.get("lock") else -1
        if lock is None:
            _say("Another copy of this run is alive on this host, so this one was not started.")
            ending.write(SECOND_COPY, second_copy=True)
            return SECOND_COPY
        command: subprocess.Popen[bytes] | None = None
        early: list[int] = []

        def pass_on(number: int, _frame: object) -> None:
            if command is None:
                early.append(number)
            # Not after it was reaped: its process id may by then be somebody else's.
            elif not ending.is_over:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command.pid, number)

        # Before there is anything to pass it on to: one that came in between would end us alone.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        try:
            command = subprocess.Popen(
                spec["command"],
                env=spec["environment"],
                cwd=spec["working_directory"],
                # It keeps the lock, should its launcher be killed.
                pass_fds=(lock,) if lock >= 0 else (),
            )
        except OSError as error:
            where = f"{spec['command'][0]!r} in {spec['working_directory']!r}"
            _say(f"Could not start {where}: {error}")
            ending.write(NOT_STARTED)
            return NOT_STARTED
        for each in early:
            pass_on(each, None)
        exit_code = _reap(command.pid, ending)
        if lock >= 0:
            with contextlib.suppress(OSError):
                Path(spec["lock"]).unlink()
        return exit_code


if __name__ == "__main__":
    sys.exit(main() & 0xFF)
