"""GPUs for the worker's parts: what is read of them changes when a test says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import StateType

from xonar_prefect.core.decisions import ReasonCode, Release
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.models import (
    Limits,
    Profile,
    Training,
)
from xonar_prefect.core.quarantine import FailFastRule
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.errors import DeviceError
from xonar_prefect.store import Store
from xonar_prefect.worker.device_health import DeviceHealth
from xonar_prefect.worker.device_memory import MemoryWatch
from xonar_prefect.worker.device_watch import DeviceWatch
from xonar_prefect.worker.fail_fast import FailFast
from xonar_prefect.worker.locks import Locks
from xonar_prefect.worker.orders import Orders
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.slots import Slot, Slots

OWNER = "worker 'one' of pool 'gpus'"


def gpu(name: str, **changes: Any) -> DeviceReading:
    """Return an idle GPU."""
    plain = DeviceReading(
        id=f"GPU-{name}",
        index=ord(name[0]) - ord("a"),
        model="V100",
        memory_mib=32000,
        driver_keeps_memory=True,
    )
    return replace(plain, **changes)


@dataclass
class World:
    """What surrounds the parts: the time, the GPUs, and how runs have ended."""

    gpus: list[DeviceReading] = field(default_factory=lambda: [gpu("a"), gpu("b")])
    driver_fails: str | None = None
    now_s: float = 1000.0
    states: dict[str, StateType] = field(default_factory=dict)
    renewed: list[str] = field(default_factory=list)

    kind = "nvidia"

    def read(self, processes: Mapping[str, Sequence[int]]) -> tuple[DeviceReading, ...]:
        if self.driver_fails is not None:
            raise DeviceError(self.driver_fails)
        return tuple(self.gpus)

    def change(self, name: str, **changes: Any) -> None:
        """Change what is read of a GPU."""
        self.gpus = [
            replace(each, **changes) if each.id == f"GPU-{name}" else each for each in self.gpus
        ]

    def clock(self) -> float:
        return self.now_s

    async def state_of(self, run_id: str) -> StateType | None:
        return self.states.get(run_id)

    async def renew(self, slot: Slot) -> None:
        self.renewed.append(slot.entry.name)


@dataclass
class Host:
    """A worker's parts that deal with devices, and a life that can begin again."""

    world: World
    directory: Path
    store: Store
    slots: Slots
    locks: Locks
    quarantines: Quarantines
    devices: DeviceWatch
    health: DeviceHealth
    orders: Orders

    async def look(self, seconds: float = 3.0) -> bool:
        """Let time pass, and look."""
        self.world.now_s += seconds
        return await self.health.look()

    async def unavailable(self) -> dict[str, str | None]:
        """Return what keeps trainings off each device."""
        return {reading.id: reading.unavailable for reading in await self.devices.read()}

    async def start(
        self, name: str, *devices: str, deployment: str | None = None, pids: Sequence[int] = ()
    ) -> Slot:
        """Put a running training on devices, and look at them before."""
        await self.devices.look()
        release = Release(
            training=Training(
                run_id=name,
                name=f"train {name}",
                submitted_at_s=0.0,
                deployment=deployment or name,
                gpus=len(devices),
            ),
            devices=tuple(f"GPU-{device}" for device in devices),
            code=ReasonCode.FIRST_ON_DEVICE,
            reason="It is first.",
            request_mib=1000,
        )
        slot = await self.slots.reserve(release, "V100", self.directory / "runs")
        await self.slots.advance(
            slot, state=SlotState.RUNNING, launched_at_s=self.world.now_s, launcher_pid=1
        )
        slot.pids = list(pids)
        slot.all_pids.update(pids)
        return slot

    async def end(self, slot: Slot, exit_code: int | None = 0, after_s: float = 5.0) -> None:
        """End a training and free its slot."""
        self.world.now_s += after_s
        slot.pids = []
        await self.slots.advance(
            slot,
            state=SlotState.DRAINING,
            ended_at_s=self.world.now_s,
            exit_code=exit_code,
        )
        await self.slots.free(slot)


@contextmanager
def host(
    directory: Path, world: World, *, rule: FailFastRule | None = None, held: Sequence[str] = ()
) -> Iterator[Host]:
    """Begin a life of a worker in this directory."""
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(f"sqlite:///{directory / 'store.db'}"))
        locks = Locks(directory / "locks")
        stack.callback(locks.close)
        slots = Slots(store, "one", world.clock)
        quarantines = Quarantines(store, "box", world.clock)
        devices = DeviceWatch(
            world,  # type: ignore[arg-type]
            locks,
            owner=OWNER,
            quarantines=quarantines,
            slots=slots,
        )
        devices.begin(held)
        orders = Orders(directory, "box")
        rule = rule or FailFastRule()
        health = DeviceHealth(
            devices,
            slots,
            quarantines,
            orders=orders,
            fail_fast=FailFast(slots, quarantines, world.state_of, rule=rule, clock=world.clock),
            memory=MemoryWatch(slots, store, Limits(), on_profile=world.renew),
            clock=world.clock,
        )
        yield Host(
            world=world,
            directory=directory,
            store=store,
            slots=slots,
            locks=locks,
            quarantines=quarantines,
            devices=devices,
            health=health,
            orders=orders,
        )


def profile(key: str, peak_memory_mib: int | None) -> Profile:
    """Return a profile of a kind on these GPUs."""
    return Profile(key=key, device_model="V100", peak_memory_mib=peak_memory_mib, steps=10)
