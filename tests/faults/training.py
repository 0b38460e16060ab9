"""A tiny training in the place of `prefect flow-run execute`, which keeps a diary of its own.

    python -S training.py DIARY [seconds=0.5] [exit=0] [leave=child|stubborn] [deaf=1]

It sets its run's states as an engine does, and asks as long as it takes where the server is away.
Into the diary, outside of everything that a trial breaks, it writes what it does when it does it:

    started   its process is there
    begun     the server let it begin
    denied    the server did not
    left      it leaves this process behind, in a session of its own
    worked    its work is done: the moment from which it must not be done again
    failed    it is about to fail as it was told to
    ended     the server knows that it has completed
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

DIARY = sys.argv[1]
OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[2:])
RUN = os.environ["PREFECT__FLOW_RUN_ID"]
API = os.environ["PREFECT_API_URL"]
RUN_DIRECTORY = Path(os.environ["XONAR_RUN_DIR"])
ASK_AGAIN_SECONDS = 0.2
PATIENCE_SECONDS = 600.0


def note(event, **facts):
    placement = json.loads((RUN_DIRECTORY / "placement.json").read_text())
    line = {
        "at_s": time.time(),
        "run": RUN,
        "event": event,
        "pid": os.getpid(),
        "devices": placement["devices"],
        "request_mib": placement["memory_request_mib"],
        **facts,
    }
    descriptor = os.open(DIARY, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)


def ask(path, body=None):
    """Ask the server until it answers; None where the run is deleted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        request = urllib.request.Request(
            API + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
        except (OSError, ValueError, http.client.HTTPException):
            pass
        time.sleep(ASK_AGAIN_SECONDS)
    sys.exit("The server did not answer.")


def propose(kind):
    """Return whether the run is in the state now because of us, though an answer was lost."""
    transition = str(uuid.uuid4())
    state = {"type": kind, "state_details": {"transition_id": transition}}
    answer = ask(f"/flow_runs/{RUN}/set_state", {"state": state})
    if answer is not None and answer["status"] == "ACCEPT":
        return True
    run = ask(f"/flow_runs/{RUN}")
    return run is not None and run["state"]["state_details"]["transition_id"] == transition


def main():
    if "deaf" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("started")
    if not propose("RUNNING"):
        note("denied")
        return
    note("begun")
    if leave := OPTIONS.get("leave"):
        command = "trap '' TERM; sleep 600" if leave == "stubborn" else "sleep 600"
        child = subprocess.Popen(["sh", "-c", command], start_new_session=True)
        note("left", left_pid=child.pid)
    print("training", flush=True)
    time.sleep(float(OPTIONS.get("seconds", "0.5")))
    exit_code = int(OPTIONS.get("exit", "0"))
    if exit_code:
        note("failed")
        os._exit(exit_code)
    note("worked")
    if propose("COMPLETED"):
        note("ended")


main()
