"""Forks the lives of one program from an interpreter that has imported it: a second, not ten.

    python nursery.py worker|server

For each line `{"log": PATH, "arguments": [...], "environment": {...}}` on standard input it forks
`xonar ARGUMENTS` or `prefect ARGUMENTS` and prints the process id. What Prefect reads from the
environment when it is imported has to be in the nursery's own.
"""

import json
import os
import runpy
import signal
import sys
import threading


def _import(kind):
    if kind == "worker":
        import prefect.events.clients

        import xonar_prefect.cli.application
        import xonar_prefect.cli.server
        import xonar_prefect.worker.worker  # noqa: F401
    else:
        import prefect.cli.server
        import prefect.server.api.server  # noqa: F401


def _live(kind, request):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if kind == "worker":
        from xonar_prefect.cli import main

        sys.exit(main(request["arguments"]))
    sys.argv = ["prefect", *request["arguments"]]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


def main():
    kind = sys.argv[1]
    _import(kind)
    if threading.active_count() > 1:
        sys.exit("A process with threads cannot be forked.")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    print("ready", flush=True)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _live(kind, json.loads(line))
            return
        print(pid, flush=True)


if __name__ == "__main__":
    main()
