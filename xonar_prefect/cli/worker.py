"""`xonar worker`: hold a pool's trainings and release them to this host's devices."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from xonar_prefect.cli.output import say

if TYPE_CHECKING:
    from xonar_prefect.settings import XonarSettings

app = App(name="worker", help="Run the worker of a xonar work pool.")


@app.command
def start(
    *,
    pool: Annotated[str, Parameter(name=["--pool", "-p"])],
    name: Annotated[str | None, Parameter(name=["--name", "-n"])] = None,
    work_queue: Annotated[list[str] | None, Parameter(name=["--work-queue", "-q"])] = None,
    limit: Annotated[int | None, Parameter(name=["--limit", "-l"], validator=Number(gte=1))] = None,
    policy: str | None = None,
    devices: Literal["auto", "nvidia", "cpu"] | None = None,
    cpu_devices: str | None = None,
    max_wait_seconds: float | None = None,
    observe: Annotated[bool, Parameter(negative="")] = False,
    stop_trainings: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Start a worker; its trainings live on when it is stopped, and are adopted at its return.

    SIGTERM or SIGINT stops it: it releases nothing more and leaves. With --stop-trainings it first
    ends its trainings and puts them back into the queue; a second signal has it leave at once.

    Example: `xonar worker start --pool gpus --policy complementary`

    Args:
        pool: The work pool, of type xonar.
        name: The worker's name; the host's by default. Keep it over restarts.
        work_queue: A queue of the pool to serve; repeat for several. All of them by default.
        limit: Trainings that run at once; held ones do not count.
        policy: Who runs beside whom: adaptive, complementary, lucid, horus, parallel or serial.
        devices: GPUs (nvidia), processor cores (cpu), or whatever there is (auto).
        cpu_devices: Processor cores that stand in as devices, such as `0,2-3`.
        max_wait_seconds: Age from which no later training may take the place of a held one.
        observe: Decide and explain, but let no trainings share a device.
        stop_trainings: End the trainings with the worker, and put them back into the queue.
    """
    from xonar_prefect.core.policies import policy_named
    from xonar_prefect.settings import load_settings

    settings = load_settings(
        policy=policy,
        devices=devices,
        cpu_devices=cpu_devices,
        max_wait_seconds=max_wait_seconds,
        stop_trainings=stop_trainings or None,
    )
    policy_named(settings.policy)  # a misspelt name is said before anything is started
    asyncio.run(_serve(pool, name, work_queue, limit, settings, observe=observe))


@app.command
def install(
    *options: Annotated[str, Parameter(allow_leading_hyphen=True)],
    print_: Annotated[bool, Parameter(name="--print", negative="")] = False,
) -> None:
    """Print a systemd unit that starts a worker with these options when the host does.

    Its trainings live on when the unit is stopped or started again. Nothing is installed: read
    what is printed, and save it where systemd looks for units.

    Example: `xonar worker install --print --pool gpus`

    Args:
        options: Options of `xonar worker start`.
        print_: Print the unit; there is no other way yet.
    """
    from xonar_prefect.cli.service import unit
    from xonar_prefect.errors import SettingsError

    if not print_:
        raise SettingsError(
            "A unit is only printed, never installed: add --print, and save what it prints as "
            "/etc/systemd/system/xonar-worker.service."
        )
    # A mistake in them is better said now than found in a journal.
    app.parse_args(["start", *options], exit_on_error=False, print_error=False)
    sys.stdout.write(unit(options, os.environ, interpreter=sys.executable, user=getpass.getuser()))


async def _serve(
    pool: str,
    name: str | None,
    work_queues: list[str] | None,
    limit: int | None,
    settings: XonarSettings,
    *,
    observe: bool,
) -> None:
    from xonar_prefect.cli.server import connected, existing_xonar_pool
    from xonar_prefect.worker.worker import XonarWorker

    async with connected() as client:
        await existing_xonar_pool(client, pool)
    worker = XonarWorker(
        pool,
        work_queues,
        name,
        limit=limit,
        settings=settings,
        observe_only=observe,
        create_pool_if_not_found=False,
    )
    working = asyncio.ensure_future(worker.start(printer=say))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        if not working.cancelled():  # it ended by itself, and has said why
            return
        say(f"Worker {worker.name!r} stopped.")
