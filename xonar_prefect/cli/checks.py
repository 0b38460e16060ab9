"""What `xonar doctor` looks at, one check each; a check finds out and never raises."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from xonar_prefect import __version__
from xonar_prefect.cli.output import duration
from xonar_prefect.errors import XonarError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Worker

    from xonar_prefect.settings import XonarSettings

_TENSORFLOW_SECONDS = 180
_LEAST_SHARED_MIB = 1024  # containers get 64 MiB unless they ask
_ASK_TENSORFLOW = """
import json, tensorflow
devices = tensorflow.config.list_physical_devices("GPU")
print(json.dumps({"version": tensorflow.__version__, "gpus": len(devices)}))
"""


class Outcome(str, Enum):
    """How a check ended. Printed as JSON: never renamed."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found, and what to do about it."""

    check: str
    outcome: Outcome
    found: str
    advice: str | None = None

    @classmethod
    def ok(cls, check: str, found: str) -> Finding:
        """Report that all is well."""
        return cls(check=check, outcome=Outcome.OK, found=found)

    @classmethod
    def warning(cls, check: str, found: str, advice: str) -> Finding:
        """Report what may be meant to be so."""
        return cls(check=check, outcome=Outcome.WARNING, found=found, advice=advice)

    @classmethod
    def failed(cls, check: str, error: XonarError | str, advice: str | None = None) -> Finding:
        """Report what must be mended; our errors say how by themselves."""
        return cls(check=check, outcome=Outcome.FAILED, found=str(error), advice=advice)


def check_python() -> Finding:
    """Say which interpreter and which version of this package run."""
    return Finding.ok(
        "Python", f"Python {platform.python_version()} with xonar_prefect {__version__}."
    )


async def check_server(pool: str | None) -> list[Finding]:
    """Check that the Prefect server answers, and the pool (or any xonar pool) on it."""
    from xonar_prefect.cli.server import connected

    try:
        async with connected() as client:
            version = await client.api_version()
            return [
                Finding.ok("Prefect server", f"Version {version} answers at {client.api_url}."),
                await _check_pool(client, pool),
            ]
    except XonarError as error:
        return [Finding.failed("Prefect server", error)]


async def _check_pool(client: PrefectClient, name: str | None) -> Finding:
    from prefect.client.schemas.objects import WorkerStatus

    from xonar_prefect.cli.server import existing_xonar_pool, xonar_pools

    if name is None:
        names = [pool.name for pool in await xonar_pools(client)]
        if names:
            return Finding.ok("Work pool", f"Of type xonar: {', '.join(names)}.")
        return Finding.warning(
            "Work pool",
            "There is none of type xonar.",
            "Create one with `xonar pool create NAME`.",
        )
    try:
        pool = await existing_xonar_pool(client, name)
    except XonarError as error:
        return Finding.failed("Work pool", error)
    if pool.is_paused:
        return Finding.warning(
            "Work pool",
            f"Pool {name!r} is paused: it releases nothing.",
            f"Resume it with `prefect work-pool resume {name}`.",
        )
    workers = await client.read_workers_for_work_pool(name)
    online = [_last_heard(each) for each in workers if each.status == WorkerStatus.ONLINE]
    if not online:
        return Finding.warning(
            "Work pool",
            f"Pool {name!r} has no worker online.",
            f"Start one with `xonar worker start --pool {name}`.",
        )
    return Finding.ok("Work pool", f"Pool {name!r} is served by {', '.join(online)}.")


def _last_heard(worker: Worker) -> str:
    """Name a worker with its age: Prefect has one online for a while that says nothing any more."""
    if worker.last_heartbeat_time is None:
        return worker.name
    ago = duration(max(0.0, time.time() - worker.last_heartbeat_time.timestamp()))
    return f"{worker.name} (last heard of {ago} ago)"


def check_devices(settings: XonarSettings) -> tuple[Finding, bool]:
    """Check the devices a worker would use; also tell whether they are GPUs."""
    from xonar_prefect.devices import discover

    try:
        accelerators = discover(
            settings.devices,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            cpu_cores=settings.cpu_devices,
        )
        try:
            readings = accelerators.read({})
        finally:
            accelerators.close()
    except XonarError as error:
        return Finding.failed("Devices", error), False
    broken = [f"{each.id}: {each.unavailable}" for each in readings if each.unavailable]
    models = ", ".join(sorted({each.model for each in readings}))
    if accelerators.kind == "cpu":
        found = f"No GPU is used; {len(readings)} CPU cores stand in ({models})."
        return (
            Finding.ok("Devices", found)
            if settings.devices == "cpu"
            else Finding.warning(
                "Devices",
                found,
                "If this host has NVIDIA GPUs, check that `nvidia-smi` sees them.",
            )
        ), False
    if broken:
        advice = "Nothing is released to these; the others are used."
        if len(broken) == len(readings):
            return Finding.failed("Devices", f"Unavailable: {'; '.join(broken)}."), True
        return Finding.warning("Devices", f"Unavailable: {'; '.join(broken)}.", advice), True
    return Finding.ok("Devices", f"{len(readings)} GPUs ({models})."), True


def check_tensorflow(*, gpus: bool) -> Finding:
    """Ask TensorFlow, in a process of its own, whether it sees the devices.

    Args:
        gpus: Whether the worker uses GPUs; without, TensorFlow needs to see none.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK_TENSORFLOW],
            capture_output=True,
            text=True,
            timeout=_TENSORFLOW_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding.failed(
            "TensorFlow",
            f"It did not answer within {_TENSORFLOW_SECONDS} s.",
            "Check that no driver call hangs: run `python -c 'import tensorflow'`.",
        )
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines()
        if lines and "No module named 'tensorflow'" in lines[-1]:
            return Finding.warning(
                "TensorFlow",
                "It is not installed for this Python.",
                "Where your flows need it: `pip install 'xonar-prefect[tensorflow]'` (or "
                "`[tensorflow-cpu]`).",
            )
        return Finding.failed(
            "TensorFlow",
            f"It cannot be imported: {lines[-1] if lines else f'exit {answer.returncode}'}.",
            "Reinstall it with `pip install --force-reinstall tensorflow`.",
        )
    seen = json.loads(answer.stdout.strip().splitlines()[-1])
    found = f"Version {seen['version']} sees {seen['gpus']} GPUs."
    if gpus and seen["gpus"] == 0:
        return Finding.failed(
            "TensorFlow",
            found,
            "Install one that uses GPUs: `pip install 'tensorflow[and-cuda]'`, not tensorflow-cpu.",
        )
    return Finding.ok("TensorFlow", found)


def check_store(settings: XonarSettings) -> Finding:
    """Check that the store can be opened."""
    from sqlalchemy.engine import make_url

    from xonar_prefect.store import Store

    try:
        with Store.open(settings.effective_store_url) as store:
            kinds = len(store.profile_keys())
    except XonarError as error:
        return Finding.failed("Store", error)
    shown = make_url(settings.effective_store_url).render_as_string(hide_password=True)
    return Finding.ok("Store", f"{shown} knows {kinds} kinds of trainings.")


def check_quarantines(settings: XonarSettings) -> list[Finding]:
    """Check whether trainings are kept off devices that work; nothing where that is not known."""
    from xonar_prefect.cli.local_devices import local_devices

    try:
        kept = [each for each in local_devices(settings) if each.quarantines]
    except XonarError:
        return []  # the devices and the store have checks of their own
    clauses = [f"{each.reading.id}: {each.unavailable}" for each in kept]
    if not clauses:
        return [Finding.ok("Quarantine", "No device is drained or kept from trainings.")]
    return [
        Finding.warning(
            "Quarantine",
            f"Nothing is released to {'; '.join(clauses)}.",
            "`xonar gpus release GPU` ends what was ordered by hand.",
        )
    ]


def check_host(settings: XonarSettings) -> Finding:
    """Check what the host has beside its devices, and the disk of the worker's home."""
    from xonar_prefect.core.planning.host_words import disk_shortage
    from xonar_prefect.worker.disk import HomeDisk
    from xonar_prefect.worker.host import HostWatch

    disk = HomeDisk(
        settings.home,
        least_free_mib=settings.least_free_disk_mib,
        least_free_inodes=settings.least_free_inodes,
    )
    host = HostWatch(
        disk, on_devices=1, without_device=0, headroom_mib=settings.host_headroom_mib
    ).read([])
    shared_mib = host.shared_memory_mib or 0
    found = (
        f"{host.memory_mib} MiB of main memory ({host.used_memory_mib} in use), "
        f"{host.cpu_threads} processor threads, {shared_mib} MiB of shared memory."
    )
    shortage = None if host.disk is None else disk_shortage(host.disk)
    if shortage is not None:
        return Finding.failed("Host", shortage)
    if shared_mib < _LEAST_SHARED_MIB:
        return Finding.warning(
            "Host",
            found,
            "Data loaders with several processes may need more shared memory: start the container "
            "with `--shm-size=8g`, or enlarge /dev/shm.",
        )
    return Finding.ok("Host", found)
