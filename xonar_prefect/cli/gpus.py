"""`xonar gpus`: this host's devices and who is on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from xonar_prefect.cli.output import AsJson, device, memory, print_json, print_table
from xonar_prefect.cli.residents import LocalTraining, local_trainings

if TYPE_CHECKING:
    from xonar_prefect.devices.base import DeviceReading


def gpus(*, json: AsJson = False) -> None:
    """Show this host's devices, their memory and the trainings on them.

    Example: `xonar gpus --json`

    Args:
        json: Print JSON.
    """
    from xonar_prefect.devices import discover
    from xonar_prefect.settings import load_settings
    from xonar_prefect.store import Store
    from xonar_prefect.worker.processes import ProcessTrees

    settings = load_settings()
    with Store.open(settings.effective_store_url) as store:
        trainings = local_trainings(store.open_entries())
    trees = ProcessTrees().scan()
    processes: dict[str, list[int]] = {}
    for training in trainings:
        for device_id in training.entry.devices:
            pids = trees.get(training.entry.run_directory, [])
            processes.setdefault(device_id, []).extend(pids)
    accelerators = discover(
        settings.devices,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cpu_cores=settings.cpu_devices,
    )
    try:
        readings = accelerators.read(processes)
    finally:
        accelerators.close()
    shown = [(reading, _on(reading, trainings)) for reading in readings]
    if json:
        print_json([_as_json(reading, residents) for reading, residents in shown])
        return
    print_table(
        "Devices",
        ["|", "device", "model", "memory used|", "training", "request|", "steps|"],
        [row for reading, residents in shown for row in _rows(reading, residents)],
        empty="There is no device.",
    )


def _on(reading: DeviceReading, trainings: tuple[LocalTraining, ...]) -> list[LocalTraining]:
    return [training for training in trainings if reading.id in training.entry.devices]


def _as_json(reading: DeviceReading, residents: list[LocalTraining]) -> dict[str, Any]:
    return {
        "id": reading.id,
        "index": reading.index,
        "model": reading.model,
        "memory_mib": reading.memory_mib,
        "reserved_mib": reading.reserved_mib,
        "used_mib": None if reading.unavailable else reading.used_mib,
        "unavailable": reading.unavailable,
        "trainings": [training.as_json() for training in residents],
    }


def _rows(reading: DeviceReading, residents: list[LocalTraining]) -> list[tuple[str | None, ...]]:
    """Return one row per training; the device stands in the first."""
    first = (
        str(reading.index),
        device(reading.id),
        reading.model if reading.unavailable is None else f"unavailable: {reading.unavailable}",
        None if reading.unavailable else f"{reading.used_mib:,} of {memory(reading.memory_mib)}",
    )
    if not residents:
        return [(*first, "", "", "")]
    return [
        (
            *(first if number == 0 else [""] * len(first)),
            training.entry.name,
            memory(training.entry.request_mib) or "all",
            training.steps,
        )
        for number, training in enumerate(residents)
    ]
