"""Launching: a training of its own, confined to its devices, that needs no worker."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.disks import fill
from tests.worker.waiting import eventually
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, Exit, Placement, RunDirectory
from xonar_prefect.worker.launching import Launch, free_port, start
from xonar_prefect.worker.processes import ProcessTrees, send_signal


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    directory = tmp_path / "runs" / "one"
    yield Launch(
        run_directory=RunDirectory(directory),
        placement=Placement(run_id="run-1", devices=("cpu-0",), device_kind="cpu"),
        command="env",
        environment={},
        device_environment={},
        working_directory=None,
        processors=None,
    )
    send_signal(ProcessTrees().scan().get(str(directory), []), signal.SIGKILL)


async def run(launch: Launch) -> str:
    """Launch to the end; returns the output."""
    process = await start(launch)
    await asyncio.to_thread(process.wait)
    return launch.run_directory.output.read_text()


async def environment_of(launch: Launch) -> dict[str, str]:
    lines = (await run(launch)).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


async def test_the_placement_is_there_before_the_training_starts(launch: Launch) -> None:
    await run(launch)
    assert launch.run_directory.read_placement() == launch.placement
    assert launch.run_directory.read_exit() is not None


async def test_the_devices_win_over_the_job_and_the_job_over_the_worker(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "worker")
    monkeypatch.setenv("COLOUR", "worker")
    monkeypatch.setenv("HEIGHT", "worker")
    found = await environment_of(
        replace(
            launch,
            environment={"CUDA_VISIBLE_DEVICES": "job", "COLOUR": "job"},
            device_environment={"CUDA_VISIBLE_DEVICES": "GPU-1"},
        )
    )
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert (found["COLOUR"], found["HEIGHT"]) == ("job", "worker")


async def test_a_training_is_patient_with_the_server_unless_it_is_told_otherwise(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_CLIENT_MAX_RETRIES", raising=False)
    assert (await environment_of(launch))["PREFECT_CLIENT_MAX_RETRIES"] == "9"
    hasty = replace(launch, environment={"PREFECT_CLIENT_MAX_RETRIES": "0"})
    hasty = replace(hasty, run_directory=RunDirectory(launch.run_directory.path.with_name("two")))
    assert (await environment_of(hasty))["PREFECT_CLIENT_MAX_RETRIES"] == "0"


async def test_the_training_knows_its_run_directory(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIRECTORY_VARIABLE, "/that/of/another/training")
    found = await environment_of(launch)
    assert found[RUN_DIRECTORY_VARIABLE] == str(launch.run_directory.path)


async def test_settings_of_the_worker_do_not_reach_the_training(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XONAR_STORE_URL", "postgresql://user:secret@host/xonar")
    assert "secret" not in await run(launch)


async def test_the_run_directory_is_for_its_owner_only(launch: Launch) -> None:
    await run(launch)
    assert launch.run_directory.path.stat().st_mode & 0o777 == 0o700


async def test_it_starts_in_a_new_empty_directory_or_where_it_was_told_to(
    launch: Launch, tmp_path: Path
) -> None:
    assert await run(replace(launch, command="pwd")) == f"{launch.run_directory.path / 'work'}\n"
    elsewhere = replace(
        launch,
        command="pwd",
        run_directory=RunDirectory(tmp_path / "two"),
        working_directory=tmp_path,
    )
    assert await run(elsewhere) == f"{tmp_path}\n"


async def test_a_command_may_have_arguments_in_quotes(launch: Launch) -> None:
    assert await run(replace(launch, command="echo 'one two' three")) == "one two three\n"


@pytest.mark.parametrize("command", [None, "prefect flow-run execute"])
async def test_the_default_command_is_that_of_the_workers_own_interpreter(
    launch: Launch, command: str | None
) -> None:
    process = await start(replace(launch, command=command))
    trees = ProcessTrees()
    wanted = [sys.executable, "-m", "prefect", "flow-run", "execute"]

    def commands() -> bool:
        for pid in trees.scan().get(str(launch.run_directory.path), []):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            if line == wanted:
                return True
        return False

    await eventually(commands)
    send_signal(trees.scan()[str(launch.run_directory.path)], signal.SIGKILL)
    process.wait()


async def test_a_training_lives_on_when_its_worker_dies(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    worker = """
        import asyncio, os, sys
        from pathlib import Path
        from xonar_prefect.run_directory import Placement, RunDirectory
        from xonar_prefect.worker.launching import Launch, start

        directory, gate = sys.argv[1:]
        asyncio.run(start(Launch(
            run_directory=RunDirectory(Path(directory)), placement=Placement(run_id="r"),
            command=f"sh -c 'echo up; read line < {gate}; echo $line; exit 6'", environment={},
            device_environment={}, working_directory=None, processors=None,
        )))
        os.kill(os.getpid(), 9)
    """
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(worker), str(directory.path), str(gate)], check=False
    )
    assert died.returncode == -signal.SIGKILL
    gate.write_text("well\n")
    ended = await eventually(directory.read_exit)
    assert isinstance(ended, Exit)
    assert ended.exit_code == 6
    assert directory.output.read_text() == "up\nwell\n"


def test_a_free_port_can_be_listened_on() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


async def test_a_job_may_change_how_its_libraries_work_but_not_where(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {
        "OMP_NUM_THREADS": "4",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.250",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "64")  # the worker's own does not count
    plain = await environment_of(replace(launch, device_environment=ours))
    assert {name: plain[name] for name in ours} == ours
    theirs = {
        "OMP_NUM_THREADS": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    }
    confined = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    found = await environment_of(
        replace(
            launch,
            run_directory=RunDirectory(launch.run_directory.path.with_name("two")),
            device_environment=ours,
            environment={**theirs, **confined},
        )
    )
    assert {name: found[name] for name in ours} == {**ours, **theirs}


async def test_nothing_is_left_of_a_launch_that_met_a_full_disk(
    small_disk: Path, launch: Launch
) -> None:
    (small_disk / "runs").mkdir()
    fill(small_disk)
    directory = small_disk / "runs" / "one"
    with pytest.raises(OSError, match="No space left") as failed:
        await start(replace(launch, run_directory=RunDirectory(directory)))
    assert failed.value.errno == errno.ENOSPC
    assert list((small_disk / "runs").iterdir()) == []
