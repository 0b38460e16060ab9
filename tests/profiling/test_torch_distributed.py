"""PyTorch trainings of several processes, as their launchers start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

XONAR = [sys.executable, "-c", "import sys; from xonar_prefect.cli import main; sys.exit(main())"]
RANKS = 2

# Both ranks compute for some milliseconds a step, and the second one reads its data slowly.
TRAIN = """
import os, time
import torch

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    until = time.process_time() + 0.004
    while time.process_time() < until:
        pass
    time.sleep(0.02 * rank)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""

FORK = """
import os, socket
import torch.multiprocessing

def train(rank, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    exec(TRAIN, {})

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(train, (port,), nprocs=2, start_method="fork")
"""

Profiled = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def profiled(tmp_path: Path) -> Profiled:
    def run(*command: str) -> tuple[str, dict[str, Any]]:
        target = tmp_path / "profile.json"
        done = subprocess.run(
            [*XONAR, "profile", "--json", str(target), "--", sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr, json.loads(target.read_text())

    return run


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    return str(path)


def both_ranks_were_profiled(card: str, profile: dict[str, Any]) -> None:
    assert f"processes with steps  {RANKS}" in card
    assert profile["steps"] >= 10
    assert profile["framework"].startswith("torch ")
    # The rank that waits for the other one's gradients is idle meanwhile.
    assert profile["step_seconds"] > 0.024
    assert 0 < profile["active_fraction"] < 0.8


def test_torchrun(profiled: Profiled, train: str) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    both_ranks_were_profiled(*profiled(*torchrun, train))


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch(profiled: Profiled, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch
            from accelerate import Accelerator

            accelerator = Accelerator(cpu=True)
            model = torch.nn.Linear(8, 1)
            model, optimizer = accelerator.prepare(
                model, torch.optim.SGD(model.parameters(), lr=0.01)
            )
            for _ in range(40):
                optimizer.zero_grad()
                accelerator.backward(model(torch.ones(4, 8)).square().mean())
                optimizer.step()
            """
        )
    )
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_machines=1")
    _, profile = profiled(
        *launch, "--num_processes=1", "--mixed_precision=no", "--dynamo_backend=no", str(path)
    )
    assert profile["steps"] >= 10
    assert profile["framework"].startswith("torch ")


def test_forked_ranks(profiled: Profiled, tmp_path: Path) -> None:
    """As notebooks start them, and Lightning's strategies that fork."""
    path = tmp_path / "fork.py"
    path.write_text(f"TRAIN = {TRAIN!r}\n{FORK}")
    both_ranks_were_profiled(*profiled(str(path)))
