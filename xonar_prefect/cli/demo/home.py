"""The private home of a demonstration: its files, its processes, and their certain end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xonar_prefect.cli.demo import janitor
from xonar_prefect.errors import DemoError
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE
from xonar_prefect.worker.locks import default_lock_directory

_JANITOR_SECONDS = 40.0
_SHOWN_LINES = 12
# A setting of the user's own server, store or run must not reach the private ones.
_NOT_INHERITED = (
    RUN_DIRECTORY_VARIABLE,
    "XONAR_HOME",
    "XONAR_STORE_URL",
    "XONAR_POLICY",
    "XONAR_DEVICES",
    "TF_CONFIG",
)


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the demonstration and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def require_alive(self) -> None:
        """Do nothing while it runs.

        Raises:
            DemoError: It has ended; its last words are in the message.
        """
        if not self.alive:
            raise DemoError.ended(self.name, self.process.returncode, self.last_words())

    def last_words(self) -> str:
        """Return the end of its output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])

    def stop(self, seconds: float) -> None:
        """Ask it to end, and kill it after so many seconds."""
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Home:
    """A directory that the demonstration has to itself.

    Attributes:
        path: The directory.
    """

    path: Path

    @property
    def worker_home(self) -> Path:
        """Home of the worker: store and run directories."""
        return self.path / "xonar"

    def environment(self) -> dict[str, str]:
        """Return the environment of everything that is started here."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PREFECT_") and name not in _NOT_INHERITED
        }
        return inherited | {
            janitor.HOME_VARIABLE: str(self.path),
            "PREFECT_HOME": str(self.path / "prefect-home"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "XONAR_HOME": str(self.worker_home),
            # Files that a killed training leaves behind go with the home; the locks of devices
            # must stay where all workers of this host have theirs.
            "TMPDIR": str(self.path / "temporary"),
            "XONAR_LOCK_DIRECTORY": os.environ.get(
                "XONAR_LOCK_DIRECTORY", str(default_lock_directory())
            ),
        }

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_name: str
    ) -> Child:
        """Start a process of the demonstration, out of reach of the terminal's Ctrl-C."""
        log = self.path / f"{log_name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.path,
                start_new_session=True,
            )
        return Child(name, process, log)


@contextmanager
def private_home(given: Path | None) -> Iterator[Home]:
    """Provide a home until the block ends; then no process of it is left.

    That also holds when this process is killed.

    Args:
        given: A directory to use and to keep; None for a new one that is removed at the end.

    Raises:
        DemoError: The directory cannot be used.
    """
    try:
        if given is None:
            path = Path(tempfile.mkdtemp(prefix="xonar-demo-"))
        else:
            path = given.expanduser().resolve()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "temporary").mkdir(exist_ok=True)
    except OSError as error:
        raise DemoError.unusable_home(given, error) from error
    with _only_one(path):
        command = [sys.executable, "-m", janitor.__name__, str(path)]
        keeper = subprocess.Popen(
            command if given else [*command, "--remove"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield Home(path)
        finally:
            if keeper.stdin is not None:
                keeper.stdin.close()
            keeper.wait(_JANITOR_SECONDS)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with (path / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError.home_in_use(path) from None
        yield
