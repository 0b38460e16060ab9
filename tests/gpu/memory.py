"""Memory on a device: whose account is right, and what a cap does to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# A capped load tries to take this many times its cap.
EXCESS = 2


@dataclass(frozen=True)
class Amounts:
    """How much memory is taken, in MiB.

    Attributes:
        hold: By a load, one after the other.
        limit: The cap of another load.
    """

    hold: tuple[int, ...]
    limit: int


ON_A_GPU = Amounts((512, 1024), 2048)
ON_THE_PROCESSOR = Amounts((64, 128), 256)


class Load(Protocol):
    """A load that takes orders."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def order(self, do: str, **arguments: object) -> None:
        """Have it do something."""
        ...

    def answer(self) -> dict[str, Any]:
        """Wait for the result."""
        ...


ReadPids = Callable[[Sequence[int]], "tuple[int, dict[int, int]]"]
"""Reads, in MiB, what is used on the device and by which of these processes."""


def compare_accounts(load: Load, read: ReadPids, amounts: Amounts) -> list[dict[str, Any]]:
    """Have a load take known amounts; tell what the driver, its allocator and we say of them."""
    rows = []
    used_before, by_pid = read([load.pid])
    before = {"driver": by_pid.get(load.pid), "device": used_before}
    for mib in amounts.hold:
        load.order("hold", mib=mib)
        own = load.answer()
        used, by_pid = read([load.pid])
        rows.append(
            {
                "taken_mib": mib,
                "driver_growth_mib": _difference(by_pid.get(load.pid), before["driver"]),
                "device_growth_mib": used - before["device"],
                "allocator_mib": own["account_mib"],
                "profile_mib": own["peak_mib"],
                "profile_source": own["source"],
                "driver_mib": by_pid.get(load.pid),
            }
        )
        before = {"driver": by_pid.get(load.pid), "device": used}
    return rows


def exceed_a_cap(capped: Load, neighbour: Load, amounts: Amounts, seconds: float) -> dict[str, Any]:
    """Have a capped load take too much while another one trains; tell what became of both."""
    neighbour.order("steps", active_fraction=0.5, seconds=seconds)
    undisturbed = neighbour.answer()
    neighbour.order("steps", active_fraction=0.5, seconds=seconds)
    capped.order("exceed", mib=EXCESS * amounts.limit)
    culprit = capped.answer()
    beside = neighbour.answer()  # had it ended, this would be an error
    return {
        "limit_mib": amounts.limit,
        "held_mib": culprit["held_mib"],
        "out_of_memory": culprit["out_of_memory"],
        "error": culprit["error"],
        "neighbour_steps_before": undisturbed["steps"],
        "neighbour_steps_meanwhile": beside["steps"],
    }


def problems(cap: dict[str, Any]) -> list[str]:
    """Return what is wrong with what a cap did; nothing if it held."""
    found = []
    if not cap["out_of_memory"]:
        found.append(f"a cap of {cap['limit_mib']} MiB did not stop {cap['held_mib']} MiB")
    elif cap["held_mib"] > cap["limit_mib"]:
        found.append(f"{cap['held_mib']} MiB were taken under a cap of {cap['limit_mib']} MiB")
    if cap["neighbour_steps_meanwhile"] == 0:
        found.append("the neighbour of a load out of memory made no step")
    return found


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
