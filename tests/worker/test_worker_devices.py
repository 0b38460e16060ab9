"""A whole worker and its device: drained by hand, and left alone when everything fails on it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from prefect.client.schemas.objects import FlowRun

from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import EVERY_DEVICE, FakeGpu, FakeNvml
from tests.worker.conftest import Pool, Working
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.orders import Order, Orders

pytestmark = pytest.mark.server


@pytest.fixture
def core(settings: XonarSettings) -> str:
    return f"cpu-{settings.cpu_devices}"


@pytest.fixture
def say(settings: XonarSettings, core: str) -> Callable[..., None]:
    """Say something about the core, as `xonar gpus drain` and `release` do."""
    orders = Orders(settings.home, socket.gethostname())

    def say(*, drained: bool) -> None:
        at_s = time.time()
        orders.give(Order(device=core, drained=drained, at_s=at_s, reason="fan", by="ann"))

    return say


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with fake_nvml.loaded(tmp_path) as fake:
        yield fake


async def ends_as(pool: Pool, run: FlowRun, *states: str) -> None:
    async def ended() -> bool:
        return await pool.state(run) in states

    await eventually(ended)


async def held_because(pool: Pool, run: FlowRun, words: str) -> None:
    async def said() -> bool:
        return words in str((await pool.read(run)).labels.get("xonar.reason"))

    await eventually(said)


async def test_a_drained_device_takes_nothing_until_it_is_released(
    pool: Pool, working: Working, say: Callable[..., None], settings: XonarSettings, core: str
) -> None:
    async with working() as worker:
        running = await pool.succeed("wait=gate")
        await eventually(lambda: pool.starts(running))
        say(drained=True)
        await eventually(lambda: core in worker._parts.health._quarantines.devices())
        held = await pool.succeed()
        await held_because(pool, held, "drained by ann: fan")
        pool.open("gate")  # what runs there goes on
        await ends_as(pool, running, "Completed")
        assert not pool.starts(held)
        say(drained=False)
        await ends_as(pool, held, "Completed")
        await eventually(lambda: not len(worker._parts.slots))
    with Store.open(settings.effective_store_url) as store:
        (quarantine,) = store.quarantines(socket.gethostname())
        assert quarantine.ended_at_s is not None
        steps = [step.state for step in store.transitions(run_id=str(held.id))]
    assert steps == list(SlotState)


async def test_a_device_on_which_everything_fails_does_not_eat_the_queue(
    pool: Pool,
    working: Working,
    say: Callable[..., None],
    ledger: Callable[[FlowRun], tuple[LedgerEntry, ...]],
) -> None:
    # microsoft/pai#4314, MFlowCode/MFC PR#1748
    runs = [await pool.tiny("state=RUNNING", "exit=3", name=f"run {n}") for n in range(3)]
    async with working():
        for run in runs:
            await ends_as(pool, run, "Crashed")
        spared = await pool.succeed()
        await held_because(pool, spared, "3 trainings, one after the other, failed here")
        assert not pool.starts(spared)
        say(drained=False)
        await ends_as(pool, spared, "Completed")
    assert ledger(spared)[0].host == socket.gethostname()


async def test_a_worker_starts_under_an_upgraded_driver_and_releases_when_it_is_loaded(
    pool: Pool, working: Working, settings: XonarSettings, nvml: FakeNvml
) -> None:
    # lyulyul/shine-cluster#30, NVIDIA/ubuntu-packaging-nvidia-driver#3: no crash loop.
    mismatch = {("nvmlInitWithFlags", EVERY_DEVICE): pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    nvml.show(FakeGpu(uuid="GPU-aaaa"), failures=mismatch)
    with_gpus = settings.model_copy(update={"devices": "nvidia"})
    async with working(settings=with_gpus):
        run = await pool.succeed()
        await held_because(pool, run, "driver and its library do not match")
        nvml.show(FakeGpu(uuid="GPU-aaaa"))
        await ends_as(pool, run, "Completed")
