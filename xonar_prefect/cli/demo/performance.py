"""The demonstration from its first to its last line."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from xonar_prefect.cli.demo import comparison, live, report, trainings
from xonar_prefect.cli.demo.comparison import OURS, Comparison
from xonar_prefect.cli.demo.devices import DemoDevices, find_devices
from xonar_prefect.cli.demo.home import Home, private_home
from xonar_prefect.cli.demo.private_server import private_server
from xonar_prefect.cli.demo.report import QueueResult
from xonar_prefect.cli.demo.running import Demonstration
from xonar_prefect.cli.output import try_to_write
from xonar_prefect.core.policies import policy_named
from xonar_prefect.errors import DemoError
from xonar_prefect.settings import load_settings
from xonar_prefect.store import Store

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for; see `xonar demo --help`. `repeats` is 0 without `--compare`."""

    json: str | None = None
    queue_size: int | None = None
    devices: Literal["auto", "nvidia", "cpu"] = "auto"
    policy: str | None = None
    repeats: int = 0
    keep: bool = False
    port: int | None = None
    home: Path | None = None
    flows: Path | None = None


def perform(options: Options) -> int:
    """Run the demonstration; return 0 when every training has completed, else 1.

    When it returns or raises, no process that it started is left.

    Raises:
        XonarError: Something is wrong that the user must mend.
        KeyboardInterrupt: The user has interrupted it.
    """
    console = Console(stderr=options.json == "-")
    policy = policy_named(load_settings(policy=options.policy).policy).name
    flows = trainings.find_flows(options.flows)
    devices = find_devices(options.devices)
    _require_writable(options.json)
    with _sigterm_unwinds(), private_home(options.home) as home:
        try:
            with _prepared(home, devices, flows, console, options.port) as demonstration:
                return _perform(demonstration, policy, options)
        except KeyboardInterrupt:
            console.print("Interrupted; ending everything that was started.")
            raise


@contextmanager
def _prepared(
    home: Home, devices: DemoDevices, flows: Path, console: Console, port: int | None
) -> Iterator[Demonstration]:
    """Provide server, pool, deployments and store."""
    from prefect.client.orchestration import SyncPrefectClient

    with (
        private_server(home, console, port=port, cores=devices.spare_cores) as server,
        SyncPrefectClient(server.api_url) as client,
        Store.open(f"sqlite:///{home.worker_home / 'store.db'}") as store,
    ):
        with live.waiting(console, f"Deploying the flows of {flows} ..."):
            trainings.cancel_unfinished(client)
            trainings.create_pool(client)
            deployments = trainings.deploy(client, flows)
        console.print(f"Run pages, as long as this runs: {server.runs_url}", soft_wrap=True)
        yield Demonstration(
            home=home,
            server=server,
            client=client,
            store=store,
            devices=devices,
            deployments=deployments,
            console=console,
        )


def _perform(demonstration: Demonstration, policy: str, options: Options) -> int:
    size = options.queue_size or demonstration.devices.trainings
    queue = trainings.queue_of(size)
    console = demonstration.console
    if options.repeats:
        compared = _compare(demonstration, queue, policy, options.repeats)
        results = [result for repeat in compared.repeats for result in repeat.values()]
        console.print(comparison.table_of(compared, policy))
        _say(console, comparison.sentences_about(compared))
        data = compared.to_json()
    else:
        result = demonstration.run(queue, policy=policy, label="demo")
        results = [result]
        _print_result(console, result, f"{size} trainings on {demonstration.devices}")
        data = result.to_json()
    _write(options.json, data)
    console.print(f"Run pages: {demonstration.server.runs_url}", soft_wrap=True)
    if options.keep:
        _keep(demonstration)
    else:
        _say(console, ["The server ends now; `xonar demo --keep` keeps it for a look at them."])
    return 0 if all(result.average_jct_s is not None for result in results) else 1


def _compare(
    demonstration: Demonstration,
    queue: tuple[trainings.QueuedTraining, ...],
    policy: str,
    repeats: int,
) -> Comparison:
    """Profile every kind once, alone; then run the queue under each policy, in turn."""
    console = demonstration.console
    _say(console, ["First every kind is profiled once, alone on its device; this does not count."])
    demonstration.run(trainings.one_of_each(), policy="serial", label="profiling")
    done = []
    for repeat in range(repeats):
        results: dict[str, QueueResult] = {}
        for arm in comparison.order_of(repeat):
            arm_policy = policy if arm == OURS else arm
            label = f"{arm}-{repeat + 1}"
            results[arm] = demonstration.run(queue, policy=arm_policy, label=label)
            _print_result(console, results[arm], f"{label} of {repeats}, policy {arm_policy}")
        done.append(results)
    return Comparison(repeats=tuple(done))


def _print_result(console: Console, result: QueueResult, title: str) -> None:
    console.print(report.table_of(result, title))
    _say(console, report.sentences_about(result))


def _say(console: Console, sentences: list[str]) -> None:
    for sentence in sentences:
        console.print(Text(sentence))


def _write(target: str | None, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    elif target is not None:
        Path(target).write_text(text, encoding="utf-8")


def _keep(demonstration: Demonstration) -> None:
    """Wait for Ctrl-C, which is then the regular end."""
    demonstration.console.print("The server runs until you press Ctrl-C.")
    try:
        while True:
            demonstration.server.child.require_alive()
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return


def _require_writable(target: str | None) -> None:
    """Find out before minutes of training that the result could not be written."""
    if target is None or target == "-":
        return
    try:
        try_to_write(Path(target))
    except OSError as error:
        raise DemoError.unwritable(target, error) from error


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let a polite kill end the demonstration as an error does, not at once."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
