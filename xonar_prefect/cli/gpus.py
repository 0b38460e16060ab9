"""`xonar gpus`: this host's devices, who is on them, and what keeps others off them."""

from __future__ import annotations

import getpass
import socket
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from xonar_prefect.cli.local_devices import (
    LocalDevice,
    local_devices,
    named,
)
from xonar_prefect.cli.output import AsJson, device, duration, memory, print_json, print_table, say
from xonar_prefect.cli.times import end_of_duration, local_now, moment
from xonar_prefect.core.quarantine import RELEASED_BY_HAND, time_of_day
from xonar_prefect.errors import (
    NothingToReleaseError,
    NotReleasableError,
    SettingsError,
    TimeTextError,
)

if TYPE_CHECKING:
    from xonar_prefect.settings import XonarSettings
    from xonar_prefect.worker.orders import Order

app = App(name="gpus")


@app.default
def show(*, json: AsJson = False) -> None:
    """Show this host's devices, their memory, and each of their slots.

    A slot is free, reserved, running, draining or quarantined.

    Example: `xonar gpus --json`

    Args:
        json: Print JSON.
    """
    from xonar_prefect.settings import load_settings

    devices = local_devices(load_settings())
    if json:
        print_json([each.as_json() for each in devices])
        return
    print_table(
        "Devices",
        ["|", "device", "model", "memory used|", "slot", "training", "request|", "steps|"],
        [row for each in devices for row in _rows(each)],
        empty="There is no device.",
    )
    for each in devices:
        if each.unavailable is not None:
            say(f"{device(each.reading.id)} takes no training: {each.unavailable.rstrip('.')}.")


@app.command
def drain(
    gpu: str,
    /,
    *,
    reason: str,
    for_: Annotated[str | None, Parameter(name="--for")] = None,
    until: str | None = None,
) -> None:
    """Release nothing more to a device; what runs there goes on.

    It holds until `xonar gpus release`, or for a time. No worker needs to run for this.

    Example: `xonar gpus drain 1 --reason "fan is broken" --for 2h`

    Args:
        gpu: The device: its index, its id or the beginning of it.
        reason: Why, for those who wait.
        for_: For how long, such as `45m`, `2h` or `1d`.
        until: Until when, such as `18:00` or `2026-11-30 08:00`.
    """
    from xonar_prefect.settings import load_settings
    from xonar_prefect.worker.orders import Order

    if not reason.strip():
        raise SettingsError("--reason is empty; say why, for those who wait.")
    if for_ is not None and until is not None:
        raise TimeTextError.both()
    now = local_now()
    end = end_of_duration(for_, now) if for_ is not None else None
    end = moment(until, now) if until is not None else end
    settings = load_settings()
    readings = [each.reading for each in local_devices(settings)]
    order = Order(
        device=named(gpu, readings),
        drained=True,
        at_s=now.timestamp(),
        reason=reason,
        by=getpass.getuser(),
        until_s=None if end is None else end.timestamp(),
    )
    _give(settings, order)
    ends = "until it is released" if end is None else f"until {time_of_day(end.timestamp())}"
    say(f"Nothing more is released to {order.device} {ends}; what runs there goes on.")


@app.command
def release(gpu: str, /) -> None:
    """Let a device take trainings again: it was drained, or is in quarantine.

    Example: `xonar gpus release 1`

    Args:
        gpu: The device: its index, its id or the beginning of it.
    """
    from xonar_prefect.settings import load_settings
    from xonar_prefect.worker.orders import Order

    settings = load_settings()
    devices = {each.reading.id: each for each in local_devices(settings)}
    chosen = devices[named(gpu, [each.reading for each in devices.values()])]
    if RELEASED_BY_HAND.isdisjoint(each.cause for each in chosen.quarantines):
        if chosen.unavailable is not None:
            raise NotReleasableError(chosen.reading.id, chosen.unavailable.rstrip("."))
        raise NothingToReleaseError(chosen.reading.id)
    order = Order(device=chosen.reading.id, drained=False, at_s=time.time(), by=getpass.getuser())
    _give(settings, order)
    say(f"{order.device} is released; its worker notices within seconds.")


def _give(settings: XonarSettings, order: Order) -> None:
    from xonar_prefect.worker.orders import Orders

    try:
        Orders(settings.home, socket.gethostname()).give(order)
    except OSError as error:
        raise SettingsError(
            f"The directory {settings.home} cannot be written ({error.strerror}); set XONAR_HOME "
            "to that of the worker."
        ) from error


def _rows(local: LocalDevice) -> list[tuple[str | None, ...]]:
    """Return one row per slot; the device stands in the first."""
    reading = local.reading
    used = None if reading.unavailable else f"{reading.used_mib:,} of {memory(reading.memory_mib)}"
    slots: list[tuple[str | None, ...]] = [
        (
            _since(training.entry.state.value, training.entry.state_since_s),
            training.entry.name,
            memory(training.entry.request_mib) or "all",
            training.steps,
        )
        for training in local.trainings
    ]
    free = "free" if local.unavailable is None else "quarantined"
    slots += [(free, "", "", "")] * local.free_slots
    first = (str(reading.index), device(reading.id), reading.model, used)
    return [
        (*(first if number == 0 else [""] * len(first)), *slot) for number, slot in enumerate(slots)
    ] or [(*first, free, "", "", "")]


def _since(state: str, since_s: float) -> str:
    return f"{state} for {duration(max(0.0, time.time() - since_s))}"
