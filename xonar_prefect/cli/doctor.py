"""`xonar doctor`: what is ready, what is not, and what to do about it."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.text import Text

from xonar_prefect.cli.checks import (
    Finding,
    Outcome,
    check_devices,
    check_host,
    check_python,
    check_quarantines,
    check_server,
    check_store,
    check_tensorflow,
)
from xonar_prefect.cli.output import AsJson, print_json

_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "red"}


async def doctor(*, pool: str | None = None, json: AsJson = False) -> int:
    """Check Python, server, pool, devices, TensorFlow, store and host; exit 1 when one has failed.

    Example: `xonar doctor --pool gpu-box`

    Args:
        pool: The work pool to check; by default it is enough that there is one of type xonar.
        json: Print JSON.
    """
    from xonar_prefect.settings import load_settings

    settings = load_settings()
    devices, gpus = await asyncio.to_thread(check_devices, settings)
    findings = [
        check_python(),
        *await check_server(pool),
        devices,
        await asyncio.to_thread(check_tensorflow, gpus=gpus),
        await asyncio.to_thread(check_store, settings),
        *await asyncio.to_thread(check_quarantines, settings),
        await asyncio.to_thread(check_host, settings),
    ]
    if json:
        print_json(
            [
                {
                    "check": each.check,
                    "outcome": each.outcome.value,
                    "found": each.found,
                    "advice": each.advice,
                }
                for each in findings
            ]
        )
    else:
        for each in findings:
            _print(each)
    return int(any(each.outcome is Outcome.FAILED for each in findings))


def _print(finding: Finding) -> None:
    line = Text()
    line.append(f"{finding.outcome.value:<8}", style=_STYLES[finding.outcome])
    line.append(f"{finding.check}: ", style="bold")
    line.append(" ".join(filter(None, (finding.found, finding.advice))))
    Console().print(line)
