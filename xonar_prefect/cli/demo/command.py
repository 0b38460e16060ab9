"""The command `xonar demo`; what it needs is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number


def demo(
    *,
    json: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    queue_size: Annotated[int | None, Parameter(validator=Number(gte=8))] = None,
    devices: Literal["auto", "nvidia", "cpu"] = "auto",
    policy: str | None = None,
    compare: Annotated[bool, Parameter(negative="")] = False,
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    keep: Annotated[bool, Parameter(negative="")] = False,
    port: Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))] = None,
    home: Path | None = None,
    flows: Path | None = None,
) -> int:
    """Run a queue of real trainings on a private Prefect server, and show what sharing brings.

    Without a GPU, two processor cores stand in as devices. Everything that is started ends with
    the command, and nothing of your own Prefect configuration is touched.

    Example: `xonar demo`, or `xonar demo --compare --repeat 3 --json result.json`

    Args:
        json: Also write the result as JSON to this file; `-` is standard output.
        queue_size: Number of trainings; at least eight; by default ten, or four per
            device where that is more.
        devices: What to train on; auto takes GPUs and falls back to processor cores.
        policy: Policy that orders the trainings; by default that of `XONAR_POLICY`.
        compare: Run the same queue serially and as plain first-come-first-served pairs too.
        repeat: How often to compare; each repeat begins with another policy.
        keep: Keep the server until Ctrl-C, to look at the run pages.
        port: Port of the server; by default a free one.
        home: Directory for all files, kept afterwards; by default one that is removed at the end.
        flows: Directory of the flows; by default that of the repository.
    """
    from xonar_prefect.cli.demo.performance import Options, perform

    return perform(
        Options(
            json=json,
            queue_size=queue_size,
            devices=devices,
            policy=policy,
            repeats=repeat if compare else 0,
            keep=keep,
            port=port,
            home=home,
            flows=flows,
        )
    )
