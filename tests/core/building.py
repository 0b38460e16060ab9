"""Short ways to build the core's values in tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xonar_prefect.core.decisions import (
    Decision,
    Hold,
    Refuse,
    Release,
)
from xonar_prefect.core.models import (
    Device,
    Limits,
    Observation,
    Profile,
    Resident,
    Snapshot,
    Training,
)

MODEL = "V100"


def profile(
    key: str, active: float | None = None, peak: int | None = None, model: str = MODEL
) -> Profile:
    return Profile(key=key, device_model=model, active_fraction=active, peak_memory_mib=peak)


def training(
    name: str,
    submitted: float = 0.0,
    *,
    active: float | None = None,
    peak: int | None = None,
    request: int | None = None,
    key: str | None = None,
    **values: Any,
) -> Training:
    """Build a training; `active` and `peak` become its profile on the model V100."""
    key = key or name
    known = active is not None or peak is not None
    return Training(
        run_id=f"run-{name}",
        name=name,
        submitted_at_s=submitted,
        memory_request_mib=request,
        profile_key=key,
        profiles={MODEL: profile(key, active, peak)} if known else {},
        **values,
    )


def resident(
    name: str | Training, request: int | None = 1000, *, used: int = 0, on: Iterable[int] = (0,)
) -> Resident:
    who = training(name) if isinstance(name, str) else name
    devices = tuple(f"GPU-{index}" for index in on)
    return Resident(
        training=who,
        devices=devices,
        request_mib=request,
        used_mib=used,
        remaining_seconds=who.remaining_seconds,
    )


def device(index: int = 0, *residents: Resident, memory: int = 16000, **values: Any) -> Device:
    return Device(
        **{
            "id": f"GPU-{index}",
            "index": index,
            "model": MODEL,
            "memory_mib": memory,
            "residents": residents,
            **values,
        }
    )


def snapshot(
    held: Iterable[Training], devices: Iterable[Device], now: float = 100.0, **limits: Any
) -> Snapshot:
    rules = Limits(**{"max_wait_seconds": 1800.0, **limits})
    return Snapshot(now_s=now, held=tuple(held), devices=tuple(devices), limits=rules)


def observation(
    victim: str, *partners: str, slowdown: float, steps: int = 1000, model: str = MODEL
) -> Observation:
    return Observation(
        device_model=model,
        profile_key=victim,
        partner_keys=tuple(sorted(partners)),
        slowdown=slowdown,
        steps=steps,
    )


def by_name(decisions: Iterable[Decision]) -> dict[str, Decision]:
    return {decision.training.name: decision for decision in decisions}


def released(decisions: Iterable[Decision]) -> dict[str, tuple[str, ...]]:
    """Return the devices of what was released, by name."""
    return {d.training.name: d.devices for d in decisions if isinstance(d, Release)}


def hold(decisions: Iterable[Decision], name: str) -> Hold:
    decision = by_name(decisions)[name]
    assert isinstance(decision, Hold), decision
    return decision


def refusal(decisions: Iterable[Decision], name: str) -> Refuse:
    decision = by_name(decisions)[name]
    assert isinstance(decision, Refuse), decision
    return decision


def release(decisions: Iterable[Decision], name: str) -> Release:
    decision = by_name(decisions)[name]
    assert isinstance(decision, Release), decision
    return decision
