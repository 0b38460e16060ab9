from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from xonar_prefect.cli.demo import janitor
from xonar_prefect.cli.demo.home import private_home
from xonar_prefect.errors import DemoError
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE
from xonar_prefect.worker.locks import default_lock_directory

_WAITS = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
_IGNORES_SIGTERM = [*_WAITS[:2], f"import signal; signal.signal(15, signal.SIG_IGN); {_WAITS[2]}"]
# A demonstration that is killed: it starts a child, tells of it, and waits.
_DEMONSTRATION = (
    "import signal, sys\n"
    "from xonar_prefect.cli.demo.home import private_home\n"
    "with private_home(None) as home:\n"
    "    child = home.start('child', ['sleep', '600'], home.environment(), 'child')\n"
    "    print(home.path, child.process.pid, flush=True)\n"
    "    signal.pause()\n"
)


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_nothing_is_left_after_the_block() -> None:
    with private_home(None) as home:
        child = home.start("child", _WAITS, home.environment(), "child")
        until(lambda: "up" in child.last_words())
        assert home.path.is_dir()

    assert not child.alive
    assert not home.path.exists()


def test_training_in_a_session_of_its_own_is_found_by_its_run_directory() -> None:
    with private_home(None) as home:
        run_directory = str(home.worker_home / "runs" / "some-run")
        training = subprocess.Popen(
            _WAITS, env={RUN_DIRECTORY_VARIABLE: run_directory}, start_new_session=True
        )

    assert training.wait(timeout=120) == -signal.SIGTERM


def test_process_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with private_home(None) as home:
        child = home.start("child", _IGNORES_SIGTERM, home.environment(), "child")
        until(lambda: "up" in child.last_words())

    assert child.process.wait(timeout=120) == -signal.SIGKILL


def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    near_miss = {RUN_DIRECTORY_VARIABLE: f"{tmp_path}-other/runs/1"}
    with subprocess.Popen(_WAITS, env=near_miss, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            assert janitor.end_processes(tmp_path)
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_demonstration_is_killed(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DEMONSTRATION],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as demonstration:
        assert demonstration.stdout is not None
        path, pid = demonstration.stdout.readline().split()

        demonstration.send_signal(number)
        demonstration.wait(timeout=120)

    until(lambda: _is_gone(int(pid)) and not Path(path).exists())


def test_given_home_is_kept(tmp_path: Path) -> None:
    with private_home(tmp_path / "new" / "home") as home:
        home.start("child", ["echo", "done"], home.environment(), "child").process.wait()

    assert (tmp_path / "new" / "home" / "child.log").read_text() == "done\n"


def test_second_demonstration_in_the_same_home_is_refused(tmp_path: Path) -> None:
    with (
        private_home(tmp_path),
        pytest.raises(DemoError, match="Another demonstration runs in"),
        private_home(tmp_path),
    ):
        pass


def test_home_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(DemoError, match=r"Cannot use .*--home DIRECTORY"),
        private_home(tmp_path / "file" / "home"),
    ):
        pass


def test_settings_of_the_users_own_prefect_do_not_reach_the_private_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE", "XONAR_STORE_URL"):
        monkeypatch.setenv(name, "the user's")
    monkeypatch.setenv(RUN_DIRECTORY_VARIABLE, "of another run")

    with private_home(tmp_path) as home:
        environment = home.environment()

    assert "the user's" not in environment.values()
    assert RUN_DIRECTORY_VARIABLE not in environment
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["PREFECT_HOME"].startswith(str(tmp_path))
    assert environment["DO_NOT_TRACK"] == "1"


def test_temporary_files_go_with_the_home_and_locks_stay_with_those_of_other_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XONAR_LOCK_DIRECTORY", raising=False)

    with private_home(None) as home:
        environment = home.environment()
        assert Path(environment["TMPDIR"]).is_dir()

    assert environment["TMPDIR"].startswith(str(home.path))
    assert environment["XONAR_LOCK_DIRECTORY"] == str(default_lock_directory())


def test_child_that_has_ended_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with private_home(tmp_path) as home:
        command = [sys.executable, "-c", "print('no room'); raise SystemExit(3)"]
        child = home.start("server", command, home.environment(), "server")
        child.process.wait()

        with pytest.raises(DemoError, match=r"server of the .*exit code 3(?s:.*)no room"):
            child.require_alive()
