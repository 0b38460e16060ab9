"""Trainings for the worker to run: tiny ones of the standard library, and a real flow.

A tiny training is a program in the place of `prefect flow-run execute`: it costs a tenth of a
second where a flow run costs six, and does what the worker can see of one - states, artifacts, its
status file, processes, exit code.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

TINY = '''
"""Usage: tiny.py DIRECTORY DEED... - each deed in turn; see the branches."""
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request
from pathlib import Path

here = Path(sys.argv[1])
run = os.environ["PREFECT__FLOW_RUN_ID"]

def state(kind):
    request = urllib.request.Request(
        os.environ["PREFECT_API_URL"] + f"/flow_runs/{run}/set_state",
        json.dumps({"state": {"type": kind}}).encode(),
        {"Content-Type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request) as response:
                if json.load(response)["status"] != "ACCEPT":
                    raise SystemExit("Not to be run.")
                return
        except urllib.error.HTTPError as error:
            if error.code != 503:  # its database is locked: a real flow asks again, too
                raise
        time.sleep(0.2)

with (here / f"{run}.started").open("a") as file:
    file.write(f"{os.getpid()}\\n")
for deed in sys.argv[2:]:
    deed, _, value = deed.partition("=")
    if deed == "state":
        state(value)
    elif deed == "wait":  # until a file appears
        while not (here / value).exists():
            time.sleep(0.02)
    elif deed == "exit":
        os._exit(int(value))
    elif deed == "kill":
        os.kill(os.getpid(), int(value))
    elif deed == "first":  # only the first process of a run dies of this signal
        if len((here / f"{run}.started").read_text().split()) == 1:
            os.kill(os.getpid(), int(value))
    elif deed == "say":
        print(value, flush=True)
    elif deed == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif deed == "leave":  # a child in a session of its own, that stays until a file appears
        gate = str(here / value)
        code = f"import os, time\\nwhile not os.path.exists({gate!r}): time.sleep(0.02)"
        if len(value.split("-")) > 1:
            code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n" + code
        child = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
        (here / f"{run}.left").write_text(str(child.pid))
    else:
        raise SystemExit(f"unknown deed {deed}")
'''

FLOW = '''
"""A training of small loops, without any framework."""
import subprocess
import sys
import time
from pathlib import Path

from prefect import flow

import xonar_prefect


def batches(until):
    done = 0
    while done < 20 or (until and not Path(until).exists()):
        yield done
        done += 1


class OutOfMemoryError(RuntimeError):
    """What PyTorch raises, by name."""


@xonar_prefect.xonar_task(profile_by=["kind"])
def fit(kind: str, until: str | None, room: str | None) -> int:
    if room and not Path(room).exists():
        Path(room).touch()  # there is some the next time
        raise OutOfMemoryError("CUDA out of memory.")
    done = 0
    for _ in xonar_prefect.steps(batches(until)):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        time.sleep(0.005)
        done += 1
    return done


@flow
def train(
    kind: str = "plain", until: str | None = None, child: bool = False, room: str | None = None
) -> int:
    if child:
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
    return fit(kind, until, room)
'''


def write_trainings(directory: Path) -> None:
    """Write the programs into a directory."""
    (directory / "tiny.py").write_text(TINY)
    (directory / "train.py").write_text(FLOW)


def tiny(directory: Path, *deeds: str) -> str:
    """Return the command of a tiny training."""
    return shlex.join([sys.executable, "-S", str(directory / "tiny.py"), str(directory), *deeds])


def succeed(directory: Path, *between: str) -> str:
    """Return the command of a tiny training that completes."""
    return tiny(directory, "state=RUNNING", *between, "state=COMPLETED")
