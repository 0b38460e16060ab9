"""Profiles of distributed trainings: `python -m tests.benchmarks.profile_distributed`.

Two workers exchange gradients on this host. How long they wait for each other cannot be set, so
what `xonar profile` says is compared with the kernel's account of both processes, processor time
over time and cores, of all steps after the first ones. Communication burns processor time there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

XONAR = "import sys; from xonar_prefect.cli import main; sys.exit(main())"
WARM_UP, STEPS, WORKERS = 5, 60, 2


def mirrored(kind: str, rank: int, ports: list[int]) -> Callable[[], object]:
    """Return a step of TensorFlow's MultiWorkerMirroredStrategy."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[:WORKERS]]}
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    import keras
    import numpy as np
    import tensorflow as tf

    communication = tf.distribute.experimental
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication.CommunicationOptions(
            implementation=communication.CommunicationImplementation.RING
        )
    )
    with strategy.scope():
        if kind == "dense":
            shape, batch = (2048,), 8
            layers = [keras.layers.Dense(2048, activation="relu"), keras.layers.Dense(10)]
        else:
            shape, batch = (32, 32, 3), 32
            layers = [
                keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
                keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(10),
            ]
        model = keras.Sequential([keras.layers.Input(shape), *layers])
        optimizer = keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    inputs = tf.constant(np.random.rand(batch, *shape).astype("float32"))
    labels = tf.zeros(batch, tf.int32)

    @tf.function  # type: ignore[untyped-decorator]
    def learn() -> Any:
        def on_worker() -> Any:
            with tf.GradientTape() as tape:
                error = loss(labels, model(inputs, training=True)) / (WORKERS * batch)
            gradients = tape.gradient(error, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return error

        return strategy.reduce("sum", strategy.run(on_worker), axis=None)

    return lambda: learn().numpy()


def data_parallel(kind: str, rank: int, ports: list[int]) -> Callable[[], object]:
    """Return a step of PyTorch's DistributedDataParallel."""
    import torch
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=WORKERS
    )
    size = 2048 if kind == "dense" else 256
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(2)))
    replica = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=1e-3)
    data = torch.rand(16 if kind == "dense" else 2048, size)

    def step() -> None:
        optimizer.zero_grad()
        replica(data).square().mean().backward()
        optimizer.step()

    return step


KINDS: dict[str, tuple[str, bool, Callable[[int, list[int]], Callable[[], object]]]] = {
    "MultiWorkerMirrored, dense": ("tensorflow", True, lambda *at: mirrored("dense", *at)),
    "MultiWorkerMirrored, conv": ("tensorflow", True, lambda *at: mirrored("conv", *at)),
    "DistributedDataParallel, dense": ("torch", False, lambda *at: data_parallel("dense", *at)),
    "DistributedDataParallel, wide batch": ("torch", False, lambda *at: data_parallel("b", *at)),
}


def work(kind: str, rank: int, ports: list[int], account: Path) -> None:
    """Train as one worker, and write down what the kernel counted."""
    import xonar_prefect

    _, marked, prepare = KINDS[kind]
    step = prepare(rank, ports)
    numbers = range(STEPS)
    began = used = 0.0
    for number in xonar_prefect.steps(numbers) if marked else numbers:
        if number == WARM_UP:
            began, used = time.perf_counter(), time.process_time()
        step()
    account.write_text(
        json.dumps([time.process_time() - used, time.perf_counter() - began]), encoding="utf-8"
    )


def launch(kind: str, directory: Path) -> None:
    """Start the workers and wait for them."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        ports = ",".join(str(each.getsockname()[1]) for each in (first, second))
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                __spec__.name,
                "--work",
                kind,
                "--rank",
                str(rank),
                "--ports",
                ports,
                "--directory",
                str(directory),
            ],
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(WORKERS)
    ]
    sys.exit(max(worker.wait() for worker in workers))


def measure(kind: str) -> dict[str, Any]:
    """Profile one kind as a user would."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        target = directory / "profile.json"
        subprocess.run(
            [
                sys.executable,
                "-c",
                XONAR,
                "profile",
                "--json",
                str(target),
                "--",
                sys.executable,
                "-m",
                __spec__.name,
                "--launch",
                kind,
                "--directory",
                name,
            ],
            check=True,
            capture_output=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        accounts = [json.loads(path.read_text()) for path in directory.glob("rank*.json")]
        profile: dict[str, Any] = json.loads(target.read_text())
    cores = len(os.sched_getaffinity(0))
    profile["account"] = sum(used / seconds for used, seconds in accounts) / cores
    return profile


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for hidden in ("--work", "--launch", "--ports"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch(arguments.launch, arguments.directory)
    if arguments.work:
        ports = [int(port) for port in arguments.ports.split(",")]
        account = arguments.directory / f"rank{arguments.rank}.json"
        work(arguments.work, arguments.rank, ports, account)
        return
    console = Console()
    shown = Table(title="Active fraction of two workers on one host")
    for column in ("training", "profile", "kernel's account", "error", "step", "communication"):
        shown.add_column(column)
    for kind, (module, _, _) in KINDS.items():
        if importlib.util.find_spec(module) is None:
            console.print(f"{kind}: {module} is not installed here, so not measured.")
            continue
        profile = measure(kind)
        active, communication = profile["active_fraction"], profile["communication_fraction"]
        shown.add_row(
            kind,
            f"{active:.3f}",
            f"{profile['account']:.3f}",
            f"{active - profile['account']:+.3f}",
            f"{1000 * profile['step_seconds']:.1f} ms",
            "-" if communication is None else f"{communication:.2f}",
        )
    console.print(shown)


if __name__ == "__main__":
    main()
