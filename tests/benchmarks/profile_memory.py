"""How far a measured peak is from known allocations: `python -m tests.benchmarks.profile_memory`.

A process takes steps, allocates a known amount in the midst of them, in itself or in a child, and
gives it back. Its peak less what it had before is compared with that amount.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.benchmarks.own_process import results_of

SIZES_MIB = (100, 300, 1000)

CHILD = """
import sys
ballast = b"x" * (int(sys.argv[1]) << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def measure(size_mib: int, where: str) -> None:
    """Measure one allocation; prints a line of JSON."""
    from xonar_prefect.profiling import steps
    from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe
    from xonar_prefect.profiling.window import Window

    probe = ProcessProbe(None)
    training = MeasuredTraining(probe, Window(), wanted=False)
    with training.attempt():
        before, _ = training.peak_memory()
        for number in steps(range(20)):
            if number != 10:
                continue
            if where == "itself":
                ballast = b"x" * (size_mib << 20)
                del ballast
            else:
                hold_in_child(size_mib, probe)
        peak, source = training.peak_memory()
    print(json.dumps({"before": before, "peak": peak, "source": source}))  # noqa: T201


def hold_in_child(size_mib: int, probe: object) -> None:
    """Have a child hold memory until it was seen, as a sampler sees it, at most a while later."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(size_mib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    reporter = probe.reporter  # type: ignore[attr-defined]
    probe.tree.refresh()  # type: ignore[attr-defined]
    _ = reporter.peak_resident_mib
    child.communicate()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.measure:
        measure(int(parsed.measure[0]), parsed.measure[1])
        return
    shown = Table(title="Peak of a process tree against known allocations")
    for column in ("allocated by", "allocated|", "seen|", "error|", "source"):
        shown.add_column(column.rstrip("|"), justify="right" if column.endswith("|") else "left")
    for where in ("itself", "a child"):
        for size in SIZES_MIB:
            for result in results_of(__spec__.name, "--measure", str(size), where):
                seen = result["peak"] - result["before"]
                shown.add_row(
                    where, f"{size} MiB", f"{seen} MiB", f"{seen / size - 1:+.1%}", result["source"]
                )
    Console().print(shown)


if __name__ == "__main__":
    main()
