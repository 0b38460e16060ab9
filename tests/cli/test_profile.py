"""`xonar profile` on real processes; no framework is needed to mark steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.waiting import until
from xonar_prefect.cli.profile_card import FIELDS, print_profile
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.command import CommandProfile

XONAR = [sys.executable, "-c", "import sys; from xonar_prefect.cli import main; sys.exit(main())"]

TRAIN = """
import sys, time
import xonar_prefect
for _ in xonar_prefect.steps(range(30)):
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        pass
    time.sleep(0.004)
print("loss 0.5")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(text: str) -> str:
        path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def xonar_profile(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*XONAR, "profile", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def profiled(tmp_path: Path, *command: str, **environment: str) -> tuple[Any, Any]:
    target = tmp_path / "profile.json"
    done = xonar_profile("--json", str(target), "--", *command, **environment)
    return done, json.loads(target.read_text())


def test_steps_of_a_script_are_measured(tmp_path: Path, script: Script) -> None:
    done, profile = profiled(tmp_path, sys.executable, script(TRAIN))
    assert tuple(profile)[: len(FIELDS)] == FIELDS
    assert profile["steps"] >= 10
    assert profile["source"] == "cpu-time"
    assert profile["step_seconds"] > 0.008
    assert 0 < profile["active_fraction"] < 1
    assert profile["peak_memory_mib"] > 5
    assert profile["memory_source"] == "rss"
    assert "Confidence" in done.stderr
    assert "pairs well with" in done.stderr


def test_output_input_and_exit_code_stay_those_of_the_command(script: Script) -> None:
    done = xonar_profile("--", sys.executable, script(TRAIN), "3")
    assert (done.stdout, done.returncode) == ("loss 0.5\n", 3)


def test_options_of_the_command_are_its_own(script: Script) -> None:
    done = xonar_profile(
        "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "--help"
    )
    assert done.stdout == "['--json', '--help']\n"


def test_a_command_without_steps_is_estimated_and_says_so(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 1.5: pass"
    done, profile = profiled(tmp_path, sys.executable, "-c", busy)
    assert profile["steps"] == 0
    assert profile["source"] == "process-sampling"
    assert profile["active_fraction"] > 0
    assert profile["step_seconds"] is None
    assert "No step was seen" in done.stderr
    assert "Confidence: low" in done.stderr


def test_too_few_steps_are_no_unseen_steps(script: Script) -> None:
    one = script("import xonar_prefect\nlist(xonar_prefect.steps(range(1)))")
    assert "1 step was seen, which is too few" in xonar_profile("--", sys.executable, one).stderr
    crash = "for step in xonar_prefect.steps(range(9)):\n    assert step < 2"
    done = xonar_profile("--", sys.executable, script(f"import xonar_prefect\n{crash}"))
    assert done.returncode == 1
    assert "steps were seen, which is too few" in done.stderr


def test_nothing_is_advised_about_a_command_that_failed_before_its_first_step(
    script: Script,
) -> None:
    busy = "import time\nwhile time.process_time() < 1.0: pass\nimport not_there_at_all"
    done = xonar_profile("--", sys.executable, script(busy))
    assert done.returncode == 1
    assert "pairs well" not in done.stderr
    assert "Confidence: low" in done.stderr


def test_why_a_process_could_not_be_watched_is_said(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "psutil.py").write_text("")
    (own / "torch.py").write_text("")
    (own / "train.py").write_text("import torch\nprint('trained')")
    done = xonar_profile("--", sys.executable, str(own / "train.py"))
    assert (done.stdout, done.returncode) == ("trained\n", 0)
    assert "a module of the script is called 'psutil'" in " ".join(done.stderr.split())


# Starts short processes one after the other, and tells how much of a core they had.
MANY = """
import os, subprocess, sys, time
began = time.perf_counter()
for _ in range(8):
    busy = "import time\\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
used = os.times()
print((used.children_user + used.children_system) / (time.perf_counter() - began))
"""


def test_processes_that_have_ended_count_in_an_estimate(tmp_path: Path, script: Script) -> None:
    done, profile = profiled(tmp_path, sys.executable, script(MANY))
    # On several cores one of them is busy, as far as others leave it to them.
    of_one_core = float(done.stdout)
    assert profile["active_fraction"] > 0.5 * of_one_core / len(os.sched_getaffinity(0))


def test_a_process_that_never_trains_does_not_load_what_watches() -> None:
    program = "import json, sys; print(*[name for name in sys.modules if 'xonar' in name])"
    assert xonar_profile("--", sys.executable, "-c", program).stdout == "\n"


def test_where_nothing_can_be_written_down_that_is_what_it_says() -> None:
    profile = Profile(key="command", device_model="cpu", active_fraction=0.5)
    result = CommandProfile(exit_code=0, profile=profile, processes=0, had_room=False)
    console = Console(record=True, width=200)
    print_profile("train", result, console)
    assert "nothing could be written to" in console.export_text()


def test_a_misspelt_option_is_not_taken_for_the_command() -> None:
    done = xonar_profile("--jsn", "x", "--", "true")
    assert done.returncode != 0
    assert "has no option --jsn" in done.stderr


def test_any_program_can_be_profiled() -> None:
    done = xonar_profile("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.returncode) == ("out\n", 7)
    assert done.stderr.startswith("err\n")


def test_workers_in_processes_of_their_own_are_merged(tmp_path: Path, script: Script) -> None:
    train = script(TRAIN)
    launch = script(
        f"""
        import os, subprocess, sys
        workers = [
            subprocess.Popen([sys.executable, {train!r}], env={{**os.environ, "RANK": str(rank)}})
            for rank in range(2)
        ]
        sys.exit(max(worker.wait() for worker in workers))
        """
    )
    done, profile = profiled(tmp_path, sys.executable, launch)
    assert "processes with steps  2" in done.stderr
    assert profile["steps"] >= 10


ENDLESS = """
import sys, time
import xonar_prefect
try:
    for number in xonar_prefect.steps(iter(int, 1)):
        time.sleep(0.01)
        print("step", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*XONAR, "profile", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # away from the terminal that the tests may run at
    )


def wait_for_steps(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for _ in range(number):
        assert process.stdout.readline() == "step\n"


def test_an_interrupt_reaches_the_command_and_the_card_comes_after(script: Script) -> None:
    process = start("--", sys.executable, script(ENDLESS))
    wait_for_steps(process, 30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out.endswith("interrupted\n")
    assert process.returncode == 5
    assert "steps measured" in err


def test_a_second_interrupt_while_the_last_word_is_written_is_no_error_of_ours(
    script: Script,
) -> None:
    train = script(
        """
        import time
        import xonar_prefect
        from xonar_prefect.profiling.training import MeasuredTraining

        for _ in xonar_prefect.steps(range(30)):
            time.sleep(0.004)

        def interrupted(self):
            raise KeyboardInterrupt

        MeasuredTraining.close = interrupted
        """
    )
    done = xonar_profile("--", sys.executable, train)
    assert done.returncode == 0
    assert "KeyboardInterrupt" not in done.stderr
    assert "steps measured" in done.stderr


def test_a_training_that_is_killed_leaves_what_was_measured(tmp_path: Path, script: Script) -> None:
    target, pid_file = tmp_path / "profile.json", tmp_path / "pid"
    note = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
    process = start("--json", str(target), "--", sys.executable, script(note + ENDLESS))
    wait_for_steps(process, 30)
    reports = Path(f"/proc/{pid_file.read_text()}/environ").read_bytes().decode().split("\0")
    (directory,) = [
        Path(each.partition("=")[2])
        for each in reports
        if each.startswith("XONAR_PROFILE_REPORTS=")
    ]
    until(lambda: any(directory.glob("*.profile.json")))
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert json.loads(target.read_text())["steps"] > 0
    assert not directory.exists()


def test_a_site_customisation_of_the_user_is_still_imported(tmp_path: Path, script: Script) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.customised = True")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = xonar_profile(
        "--",
        sys.executable,
        "-c",
        "import sys, sitecustomize; print(sys.customised, sitecustomize.__file__)",
        PYTHONPATH=path,
    )
    assert done.stdout == f"True {tmp_path / 'sitecustomize.py'}\n"


def test_a_python_without_this_package_is_not_disturbed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "xonar_prefect.py").write_text("raise RuntimeError('another one')")
    done = subprocess.run(
        [sys.executable, "-c", "print('fine')"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_injected()), str(elsewhere)]),
            "XONAR_PROFILE_REPORTS": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def _injected() -> Path:
    from xonar_prefect.profiling import injected

    assert injected.__file__ is not None
    return Path(injected.__file__).parent


def test_forked_workers_are_merged(tmp_path: Path, script: Script) -> None:
    forks = script(
        f"""
        import multiprocessing
        workers = [
            multiprocessing.get_context("fork").Process(target=exec, args=({TRAIN!r}, {{}}))
            for rank in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        """
    )
    done, profile = profiled(tmp_path, sys.executable, forks)
    assert done.returncode == 0
    assert "processes with steps  2" in done.stderr
    assert profile["steps"] >= 10


def test_a_forked_child_that_ends_at_once_leaves_its_parents_profile(
    tmp_path: Path, script: Script
) -> None:
    forks = script(
        """
        import os
        import xonar_prefect
        pid = os.fork()
        list(xonar_prefect.steps(range(20 if pid == 0 else 30)))
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        """
    )
    done, profile = profiled(tmp_path, sys.executable, forks)
    assert done.returncode == 0
    assert profile["steps"] >= 10


def test_a_command_that_does_not_exist_is_told() -> None:
    done = xonar_profile("--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert done.stderr.startswith(
        "xonar: 'no-such-command-anywhere' cannot be run (No such file or directory);"
    )


def test_a_command_that_cannot_be_run_is_told_as_a_shell_does(tmp_path: Path) -> None:
    done = xonar_profile("--", str(tmp_path))
    assert (done.returncode, "cannot be run (Permission denied)" in done.stderr) == (126, True)


def test_no_command_is_told() -> None:
    done = xonar_profile()
    assert done.returncode in (1, 2)
    assert "command" in done.stderr.lower()


def test_a_file_that_cannot_be_written_is_told_before_hours_of_training(tmp_path: Path) -> None:
    done = xonar_profile("--json", str(tmp_path / "no" / "p.json"), "--", "echo", "trained")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "no such directory" in done.stderr


def test_a_file_that_cannot_be_written_after_it_changes_no_exit_code(tmp_path: Path) -> None:
    target = tmp_path / "p.json"
    done = xonar_profile("--json", str(target), "--", "sh", "-c", f"mkdir {target}; exit 3")
    assert done.returncode == 3
    assert f"Cannot write {target} (Is a directory). This is the profile" in done.stderr
    kept = json.loads(done.stderr[done.stderr.index("{\n") :])
    assert kept["exit_code"] == 3


def test_a_directory_is_no_file_for_a_profile(tmp_path: Path) -> None:
    done = xonar_profile("--json", str(tmp_path), "--", "echo", "trained")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "Is a directory" in done.stderr


def test_finding_out_whether_a_file_can_be_written_leaves_none(tmp_path: Path) -> None:
    done = xonar_profile("--json", str(tmp_path / "p.json"), "--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert not list(tmp_path.iterdir())


def test_standard_output_is_the_commands_own() -> None:
    done = xonar_profile("--json", "-", "--", "echo", "trained")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "name a file" in done.stderr
