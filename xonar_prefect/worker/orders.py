"""What people say about devices: files below the home directory, read by workers at every look.

The store has one writer, the worker; a person may speak while no worker runs. So each device has
a file with the latest word about it, replaced atomically and never deleted.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from urllib.parse import quote

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The latest word of a person about a device.

    Attributes:
        device: Id of the device.
        drained: Nothing may be released to it; False releases it, from quarantines too.
        at_s: When it was said.
        reason: Why.
        by: Who said it.
        until_s: When it is released by itself; None for never.
    """

    device: str
    drained: bool
    at_s: float
    reason: str = ""
    by: str = ""
    until_s: float | None = None

    def as_reason(self) -> str:
        """Return why the device takes nothing, as a clause."""
        by = f" by {self.by}" if self.by else ""
        return f"drained{by}: {self.reason.strip().rstrip('.')}"

    def drains_at(self, now_s: float) -> bool:
        """Tell whether it keeps trainings off the device at this time."""
        return self.drained and (self.until_s is None or now_s < self.until_s)


class Orders:
    """The orders for the devices of one host.

    Args:
        home: The home directory, which several hosts may share.
        host: The host.
    """

    def __init__(self, home: Path, host: str) -> None:
        self._directory = home / "devices" / quote(host, safe="")

    def give(self, order: Order) -> None:
        """Replace the word about a device.

        Raises:
            OSError: It cannot be written.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._directory / f"{quote(order.device, safe='')}.json"
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(asdict(order)), encoding="utf-8")
        partial.replace(target)

    def read(self) -> dict[str, Order]:
        """Return the latest word about each device of which there is one."""
        orders = {}
        for file in sorted(self._directory.glob("*.json")):
            try:
                order = _order(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, TypeError, ValueError) as error:
                _logger.warning("The order in %s cannot be read (%s); it is ignored.", file, error)
                continue
            orders[order.device] = order
        return orders


def _order(values: object) -> Order:
    if not isinstance(values, dict):
        raise TypeError("it is no JSON object")
    known = {field.name for field in fields(Order)}
    return Order(**{name: value for name, value in values.items() if name in known})
