"""Programs that are killed and started again: each start is a life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from tests.waiting import until
from xonar_prefect.worker.processes import started_ticks

_NURSERY = Path(__file__).with_name("nursery.py")
_IMPORT_SECONDS = 180.0


class Life:
    """A process that is nobody's child here, known by process id and start time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ticks = started_ticks(pid)

    @property
    def alive(self) -> bool:
        return self._ticks is not None and started_ticks(self.pid) == self._ticks

    @property
    def stopped(self) -> bool:
        """Whether it is frozen by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that is gone does not matter."""
        if self.alive:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Have it do nothing more, until it is thawed or killed."""
        self.send(signal.SIGSTOP)
        until(lambda: self.stopped or not self.alive)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)


class Nursery:
    """Starts the lives of one program.

    Args:
        kind: `"worker"` or `"server"`.
        environment: In which the program is imported.
        log: Where the nursery itself complains.
    """

    def __init__(self, kind: str, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(_NURSERY), kind],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._log = log
        self._is_ready = False

    def start(
        self, log: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Life:
        """Start a life of the program, which writes to a log."""
        if not self._is_ready:
            self._is_ready = self._answer() == "ready"
        request = {
            "log": str(log),
            "arguments": arguments,
            "environment": dict(environment or {}),
        }
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return Life(int(self._answer()))

    def close(self) -> None:
        """End the nursery; the living live on."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        self._process.wait(120)

    def _answer(self) -> str:
        answer = cast("IO[str]", self._process.stdout).readline().strip()
        assert answer, f"{self._process.args} has ended: {self._log.read_text()[-2000:]}"
        return answer
