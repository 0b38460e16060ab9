"""The launcher as a real program: what it leaves in the run directory, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pytest

from tests.worker.waiting import eventually
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.worker import launcher
from xonar_prefect.worker.processes import started_ticks

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[bytes]] = []

    def launch(
        *command: str,
        program: Sequence[str] = ("-I", "-S", launcher.__file__),
        **changes: Any,
    ) -> subprocess.Popen[bytes]:
        specification = {
            "command": command,
            "environment": {"PATH": os.environ["PATH"]},
            "working_directory": str(tmp_path),
            "run_directory": str(tmp_path),
            "processors": None,
            **changes,
        }
        process = subprocess.Popen(
            [sys.executable, *program], stdin=subprocess.PIPE, env={}, start_new_session=True
        )
        with cast("IO[bytes]", process.stdin) as pipe:
            pipe.write(json.dumps(specification).encode())
        started.append(process)
        return process

    yield launch
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its training, too
        process.wait()


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program)


def output(path: Path) -> str:
    return RunDirectory(path).output.read_text()


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_written_and_returned(launch: Launch, tmp_path: Path, code: int) -> None:
    assert launch(*python(f"raise SystemExit({code})")).wait() == code
    ended = RunDirectory(tmp_path).read_exit()
    assert ended is not None
    assert ended.exit_code == code


def test_death_by_a_signal_is_a_negative_exit_code(launch: Launch, tmp_path: Path) -> None:
    launch(*python("import os; os.kill(os.getpid(), 9)")).wait()
    ended = RunDirectory(tmp_path).read_exit()
    assert ended is not None
    assert ended.exit_code == -signal.SIGKILL


def test_standard_output_and_error_go_to_one_file(launch: Launch, tmp_path: Path) -> None:
    launch("sh", "-c", "echo out; echo err >&2").wait()
    assert output(tmp_path) == "out\nerr\n"


def test_standard_input_is_empty(launch: Launch, tmp_path: Path) -> None:
    launch("sh", "-c", "cat; echo end").wait()
    assert output(tmp_path) == "end\n"


def test_a_command_that_does_not_exist_is_named(launch: Launch, tmp_path: Path) -> None:
    assert launch("no-such-command").wait() == 127
    assert output(tmp_path).startswith("Could not start 'no-such-command' in ")
    ended = RunDirectory(tmp_path).read_exit()
    assert ended is not None
    assert ended.exit_code == 127


def test_a_working_directory_that_does_not_exist_is_named(launch: Launch, tmp_path: Path) -> None:
    assert launch("true", working_directory="/no/such/place").wait() == 127
    assert "/no/such/place" in output(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_passed_on_and_the_launcher_stays_until_the_end(
    launch: Launch, tmp_path: Path, number: signal.Signals
) -> None:
    process = launch("sh", "-c", "trap 'echo asked; exit 5' TERM INT; echo up; while :; do :; done")
    await eventually(lambda: (tmp_path / "output.log").exists() and "up" in output(tmp_path))
    process.send_signal(number)
    assert process.wait() == 5
    assert output(tmp_path) == "up\nasked\n"


# A launcher that is asked to end at the very moment in which its command has started.
ASKED_EARLY = """
import os, runpy, signal, subprocess, sys

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_signal_that_comes_while_the_command_starts_is_passed_on(
    launch: Launch, tmp_path: Path
) -> None:
    program = ("-I", "-S", "-c", ASKED_EARLY, launcher.__file__)
    launch("sleep", "600", program=program).wait()
    ended = RunDirectory(tmp_path).read_exit()
    assert ended is not None
    assert ended.exit_code == -signal.SIGTERM


async def test_the_exit_is_known_before_what_was_left_behind_has_ended(
    launch: Launch, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = launch("sh", "-c", f"setsid sh -c 'read line < {gate}' & exit 4")
    await eventually(RunDirectory(tmp_path).exit_file.exists)
    assert process.poll() is None
    gate.write_text("go\n")
    assert process.wait() == 4


async def test_orphans_are_reaped_while_the_training_runs(launch: Launch, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    launch("sh", "-c", f"(sh -c 'echo $$; read line < {gate}' &); sleep 600")
    await eventually(lambda: (tmp_path / "output.log").exists() and output(tmp_path))
    orphan = int(output(tmp_path))
    gate.write_text("go\n")
    await eventually(lambda: not Path(f"/proc/{orphan}").exists())  # no zombie stays
    assert not RunDirectory(tmp_path).exit_file.exists()


def test_the_training_and_its_children_are_pinned(launch: Launch, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    launch(*python("import os; print(os.sched_getaffinity(0))"), processors=[core]).wait()
    assert output(tmp_path) == f"{{{core}}}\n"


def test_the_training_has_exactly_the_environment_it_was_given(
    launch: Launch, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "TOKEN": "secret"}
    launch(*python("import os; print(os.environ['TOKEN'])"), environment=environment).wait()
    assert output(tmp_path) == "secret\n"


async def test_nothing_of_the_specification_touches_the_disk(
    launch: Launch, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "TOKEN": "very-secret"}
    process = launch("sh", "-c", "echo up; sleep 600", environment=environment)
    await eventually(lambda: (tmp_path / "output.log").exists() and output(tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["exit.tmp", "output.log"]
    assert not any(b"very-secret" in path.read_bytes() for path in files)
    assert b"very-secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert started_ticks(process.pid) is not None


def test_a_training_ends_as_always_where_its_exit_cannot_be_written(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "exit.tmp").symlink_to("/dev/full")  # every write to it meets a full disk
    assert launch(*python("print('done')")).wait() == 0
    assert output(tmp_path) == "done\n"
    assert RunDirectory(tmp_path).read_exit() is None


def test_the_room_of_the_exit_file_is_taken_in_advance(small_disk: Path, launch: Launch) -> None:
    fill = f"""
with open({str(small_disk / "filler")!r}, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        raise SystemExit(error.errno)
"""
    assert launch(*python(fill), run_directory=str(small_disk)).wait() == errno.ENOSPC
    ended = RunDirectory(small_disk).read_exit()
    assert ended is not None
    assert ended.exit_code == errno.ENOSPC


def test_a_training_runs_also_where_there_is_no_room_for_its_output(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "output.log").mkdir()  # cannot be opened as a file
    assert launch(*python("print('unheard'); raise SystemExit(3)")).wait() == 3


async def test_a_second_copy_of_a_run_ends_before_it_has_touched_anything(
    launch: Launch, tmp_path: Path
) -> None:
    lock = str(tmp_path / "run.lock")
    directories = [tmp_path / "first", tmp_path / "second"]
    for directory in directories:
        directory.mkdir()
    launch("sh", "-c", "echo up; sleep 600", lock=lock, run_directory=str(directories[0]))
    log = directories[0] / "output.log"
    await eventually(lambda: log.exists() and log.read_text() == "up\n")
    second = launch("sh", "-c", "echo up", lock=lock, run_directory=str(directories[1]))
    assert second.wait(120) == launcher.SECOND_COPY
    assert output(directories[1]) == (
        "Another copy of this run is alive on this host, so this one was not started.\n"
    )
    ended = RunDirectory(directories[1]).read_exit()
    assert ended is not None
    assert ended.second_copy


async def test_a_training_keeps_second_copies_away_when_its_launcher_is_killed(
    launch: Launch, tmp_path: Path
) -> None:
    lock = tmp_path / "run.lock"
    process = launch("sh", "-c", "echo $$; exec sleep 600", lock=str(lock))
    await eventually(lambda: (tmp_path / "output.log").exists() and output(tmp_path))
    training = int(output(tmp_path))
    process.kill()
    process.wait()
    directory = tmp_path / "second"
    directory.mkdir()
    try:
        second = launch("true", lock=str(lock), run_directory=str(directory))
        assert second.wait(120) == launcher.SECOND_COPY
    finally:
        os.kill(training, signal.SIGKILL)
    await eventually(lambda: started_ticks(training) is None)
    assert launch("true", lock=str(lock), run_directory=str(directory)).wait(120) == 0
    assert not lock.exists()


def test_a_release_after_release_has_the_lock_again(launch: Launch, tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    assert [launch("true", lock=str(lock)).wait(120) for _ in range(2)] == [0, 0]
    assert not lock.exists()


def test_it_tells_how_many_processes_the_kernel_ended_for_lack_of_memory(
    launch: Launch, tmp_path: Path
) -> None:
    launch("true").wait()
    ended = RunDirectory(tmp_path).read_exit()
    assert ended is not None
    assert ended.oom_kills == 0
