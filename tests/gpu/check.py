"""Check this package on real devices and print what was found; `check.sh` starts it.

1. Every promise of `tests/contracts/accelerators.py`, on the real driver.
2. One training-like load alone, with several known active fractions: what this package's own
   profiler says of each.
3. Known allocations: what the driver, the allocator and this package say of them.
4. Pairs on one device: the slowdown of each beside what is predicted.
5. A load that exceeds its cap: it runs out of memory, and its neighbour does not notice.
6. The memory comes back when they end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.contracts.accelerators import PROMISES
from tests.gpu.memory import (
    ON_A_GPU,
    ON_THE_PROCESSOR,
    compare_accounts,
    exceed_a_cap,
    problems,
)
from tests.gpu.report import render
from xonar_prefect.core.interference import prior_slowdown
from xonar_prefect.devices.base import Accelerators, DeviceReading
from xonar_prefect.devices.discovery import discover
from xonar_prefect.errors import NoDeviceError, XonarError

FRACTIONS = (0.2, 0.5, 0.8)
PAIRS = ((0.3, 0.3), (0.5, 0.5), (0.3, 0.7), (0.7, 0.7), (0.9, 0.9))
LONGEST_SECONDS = 300  # for one load, from start to end: a hanging driver must not hang the check
MEMORY_BACK_SECONDS = 30


class LoadError(Exception):
    """A load did not run; what it wrote stands on standard error."""


class RunningLoad:
    """A load in a process of its own, confined to one device."""

    def __init__(
        self,
        accelerators: Accelerators,
        device_id: str,
        framework: str,
        seed: int,
        limit_mib: int | None = None,
    ) -> None:
        command = [sys.executable, "-m", "tests.gpu.load", framework, "--seed", str(seed)]
        if limit_mib is not None:
            command += ["--limit-mib", str(limit_mib)]
        cores = accelerators.processors([device_id])
        if cores is not None:
            command += ["--cores", ",".join(str(core) for core in cores)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **accelerators.environment([device_id], limit_mib),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(LONGEST_SECONDS, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def pid(self) -> int:
        """Process id of the load."""
        return self._process.pid

    def order(self, do: str, **arguments: object) -> None:
        """Have it do something; `answer` waits for the result."""
        order = {"do": do, **arguments}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` says so
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the result.

        Raises:
            LoadError: The process ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoadError(f"it ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Let it end."""
        self._watchdog.cancel()
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


def broken_promises(accelerators: Accelerators) -> dict[str, str | None]:
    """Return what went wrong with each promise; None for one that is kept."""
    return {promise.__name__: _problem(promise, accelerators) for promise in PROMISES}


def _problem(promise: Any, accelerators: Accelerators) -> str | None:
    try:
        promise(accelerators)
    except (AssertionError, XonarError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def choose_framework(asked: str, kind: str) -> str | None:
    """Return the framework to compute with; None if there is none for this kind of device."""
    if asked != "auto":
        return asked
    installed = [name for name in ("torch", "tensorflow", "jax") if importlib.util.find_spec(name)]
    return "processor" if kind == "cpu" else next(iter(installed), None)


def reading_of(
    accelerators: Accelerators, device_id: str, pids: Sequence[int] = ()
) -> DeviceReading:
    """Read one device."""
    readings = accelerators.read({device_id: pids})
    return next(reading for reading in readings if reading.id == device_id)


def measure(
    accelerators: Accelerators, device_id: str, framework: str, seconds: float
) -> dict[str, Any]:
    """Run the loads alone and together; one load of each seed lives through all of it."""
    before_mib = reading_of(accelerators, device_id).used_mib
    loads: list[RunningLoad] = []
    result: dict[str, Any] = {"loads": []}
    try:
        for seed in (1, 2):  # one after the other: each finds out how fast the device is
            loads.append(RunningLoad(accelerators, device_id, framework, seed))
            result["loads"].append(started := loads[-1].answer())
            seen = started["gpus_visible"]
            if accelerators.kind == "nvidia" and seen not in (None, 1):
                raise LoadError(f"it was given one GPU and sees {seen}")
        # TensorFlow and PyTorch put their memory on the device with the first step, taken above.
        reading = reading_of(accelerators, device_id, [load.pid for load in loads])
        result["used_mib"] = reading.used_mib
        result["used_by_load_mib"] = [reading.used_by_pid.get(load.pid) for load in loads]
        result["profiles"] = [measure_profile(loads[0], each, seconds) for each in FRACTIONS]
        result["pairs"] = [
            measure_pair(loads[0], loads[1], fractions, seconds) for fractions in PAIRS
        ]

        def read(pids: Sequence[int]) -> tuple[int, dict[int, int]]:
            reading = reading_of(accelerators, device_id, pids)
            return reading.used_mib, dict(reading.used_by_pid)

        on_a_gpu = accelerators.kind == "nvidia" and framework != "processor"
        amounts = ON_A_GPU if on_a_gpu else ON_THE_PROCESSOR
        result["memory"] = compare_accounts(loads[1], read, amounts)
        if on_a_gpu or framework == "processor":  # nobody caps a framework's main memory
            loads.append(RunningLoad(accelerators, device_id, framework, 3, amounts.limit))
            loads[-1].answer()
            result["cap"] = exceed_a_cap(loads[-1], loads[0], amounts, seconds)
    finally:
        for load in loads:
            load.end()
    # A core has its memory back when the process is gone; what others hold meanwhile varies.
    if accelerators.kind == "nvidia":
        result["memory_back_s"] = wait_for_memory(accelerators, device_id, before_mib)
    return result


def measure_profile(load: RunningLoad, fraction: float, seconds: float) -> dict[str, Any]:
    """Profile a load; the truth is its own clock's, over steps just before."""
    load.order("steps", active_fraction=fraction, seconds=seconds)
    alone = load.answer()
    load.order("profile", active_fraction=fraction, seconds=max(4 * seconds, 10))
    profile = load.answer()
    true = min(1.0, alone["active_seconds"] / alone["seconds"])
    return {"asked_active_fraction": fraction, "true_active_fraction": true, **profile}


def measure_pair(
    first: RunningLoad, second: RunningLoad, fractions: tuple[float, float], seconds: float
) -> dict[str, Any]:
    """Run two loads one after the other, then together."""
    loads = (first, second)
    alone = []
    for load, fraction in zip(loads, fractions, strict=True):
        load.order("steps", active_fraction=fraction, seconds=seconds)
        alone.append(load.answer())
    for load, fraction in zip(loads, fractions, strict=True):
        load.order("steps", active_fraction=fraction, seconds=seconds)
    together = [load.answer() for load in loads]
    active = [min(1.0, solo["active_seconds"] / solo["seconds"]) for solo in alone]
    step_seconds = [solo["seconds"] / solo["steps"] for solo in alone]
    slowdown = [
        pair["seconds"] / pair["steps"] / solo
        for pair, solo in zip(together, step_seconds, strict=True)
    ]
    return {
        "asked_active_fraction": list(fractions),
        "active_fraction": active,
        "step_seconds": step_seconds,
        "measured_slowdown": slowdown,
        "predicted_slowdown": [
            prior_slowdown(active[0], [active[1]]),
            prior_slowdown(active[1], [active[0]]),
        ],
        "predicted_slowdown_without_sharing_cost": prior_slowdown(
            active[0], [active[1]], sharing_cost=0.0
        ),
        "pair_gain": sum(1 / value for value in slowdown),
    }


def wait_for_memory(accelerators: Accelerators, device_id: str, before_mib: int) -> float | None:
    """Return the seconds until the device is as empty as before; None if it never is."""
    started_at_s = time.perf_counter()
    while (waited_s := time.perf_counter() - started_at_s) < MEMORY_BACK_SECONDS:
        if reading_of(accelerators, device_id).used_mib <= before_mib + 64:
            return waited_s
        time.sleep(0.1)
    return None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="tests/gpu/check.sh")
    parser.add_argument("--devices", choices=("nvidia", "cpu"), default="nvidia")
    parser.add_argument("--device", type=int, help="index of the device; default: the first usable")
    parser.add_argument(
        "--framework", choices=("auto", "torch", "tensorflow", "jax", "processor"), default="auto"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), metavar="FILE")
    return parser.parse_args(arguments)


def check(arguments: argparse.Namespace) -> int:
    """Run the check and return the exit status: 0 well, 1 something is wrong."""
    accelerators = discover(
        arguments.devices, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), cpu_cores=None
    )
    devices = accelerators.read({})
    result: dict[str, Any] = {
        "kind": accelerators.kind,
        "devices": [_as_json(reading) for reading in devices],
        "promises": broken_promises(accelerators),
    }
    framework = choose_framework(arguments.framework, accelerators.kind)
    usable = [
        reading.id
        for reading in devices
        if reading.unavailable is None and arguments.device in (None, reading.index)
    ]
    status = 1 if any(result["promises"].values()) else 0
    if not usable:
        result["problem"] = "no such device can be used"
        status = 1
    elif framework is None:
        result["problem"] = "neither PyTorch nor TensorFlow nor JAX is installed"
    else:
        result["device"], result["framework"] = usable[0], framework
        try:
            result["measured"] = measure(accelerators, usable[0], framework, arguments.seconds)
            cap = result["measured"].get("cap")
            result["wrong"] = [] if cap is None else problems(cap)
            status = 1 if result["wrong"] else status
        except LoadError as error:
            result["problem"] = f"the load did not run ({error})"
            status = 1
    accelerators.close()
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    say(render(result))
    say(f"\nWritten to {arguments.json}.")
    return status


def say(text: str) -> None:
    """Tell the person who started the check."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _as_json(reading: DeviceReading) -> dict[str, Any]:
    names = ("id", "index", "model", "memory_mib", "reserved_mib", "used_mib", "unavailable")
    return {name: getattr(reading, name) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    try:
        return check(parse(sys.argv[1:] if arguments is None else arguments))
    except NoDeviceError as error:
        say(f"There is no GPU here, so nothing was checked. {error}")
        return 0
    except XonarError as error:
        say(f"The devices cannot be read. {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
