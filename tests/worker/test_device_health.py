"""When nothing is released to a device, for how long, and what lets it return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType

from tests.worker.gpus import Host, World, gpu, host
from xonar_prefect.core.endings import Tally, Verdict
from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.quarantine import FailFastRule, QuarantineCause
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.worker.orders import Order


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def box(tmp_path: Path, world: World) -> Iterator[Host]:
    with host(tmp_path, world) as box:
        yield box


async def fail(box: Host, number: int, *devices: str, exit_code: int = 1, **options: str) -> None:
    slot = await box.start(f"run {number} on {devices}", *devices, **options)
    await box.end(slot, exit_code)
    await box.look(0.0)


# --- what a device or its driver says ---


async def test_a_device_with_a_problem_of_its_own_is_left_alone_until_it_is_gone(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # NVIDIA/k8s-device-plugin#243, #267: uncorrectable memory errors, and still "healthy".
    world.change("a", unavailable="uncorrected memory errors: 2; reset the GPU")
    for _ in range(3):
        await box.look()
    assert await box.unavailable() == {
        "GPU-a": "uncorrected memory errors: 2; reset the GPU",
        "GPU-b": None,
    }
    assert caplog.text.count("Nothing is released to GPU-a") == 1
    (quarantine,) = box.store.open_quarantines("box")
    assert (quarantine.cause, quarantine.begun_at_s) == (QuarantineCause.DEVICE, 1003.0)
    world.change("a", unavailable=None)
    assert await box.look()
    assert await box.unavailable() == {"GPU-a": None, "GPU-b": None}
    assert box.store.open_quarantines("box") == ()
    assert box.store.quarantines("box")[0].ended_at_s == 1012.0


async def test_while_the_driver_fails_every_device_says_why_and_trainings_stay_looked_after(
    box: Host, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # lyulyul/shine-cluster#30, NVIDIA/ubuntu-packaging-nvidia-driver#3: an upgraded driver.
    slot = await box.start("r", "a", pids=[7])
    world.driver_fails = "The NVIDIA driver and its library do not match; reboot."
    for _ in range(3):
        await box.look()
    assert set((await box.unavailable()).values()) == {
        "The NVIDIA driver and its library do not match; reboot"
    }
    assert caplog.text.count("No device can be read") == 1
    assert slot.entry.state is SlotState.RUNNING
    world.driver_fails = None
    assert await box.look()
    assert await box.unavailable() == {"GPU-a": None, "GPU-b": None}


# --- fails fast (microsoft/pai#4314, MFlowCode/MFC PR#1748) ---


async def test_a_black_hole_does_not_eat_the_queue(box: Host) -> None:
    for number in range(3):
        await fail(box, number, "a")
    why = await box.unavailable()
    assert (why["GPU-a"] or "").startswith(
        "3 trainings, one after the other, failed here within 60 s of the launch (until 1970-01-01 "
    )
    assert why["GPU-b"] is None


async def test_it_returns_after_a_pause_which_is_longer_the_next_time(
    box: Host, world: World
) -> None:
    for number in range(3):
        await fail(box, number, "a")
    first = box.quarantines.get("GPU-a", QuarantineCause.FAILS_FAST)
    assert first is not None
    assert first.until_s == world.now_s + 300.0
    assert not await box.look(297.0)
    assert await box.look(3.0)
    assert (await box.unavailable())["GPU-a"] is None
    await fail(box, 4, "a")  # on probation, once is enough
    second = box.quarantines.get("GPU-a", QuarantineCause.FAILS_FAST)
    assert second is not None
    assert second.until_s == world.now_s + 600.0
    assert "4 trainings" in second.reason


async def test_a_device_on_which_a_training_works_is_forgiven(box: Host, world: World) -> None:
    for number in range(3):
        await fail(box, number, "a")
    await box.look(300.0)
    good = await box.start("good", "a")
    world.states["good"] = StateType.COMPLETED
    await box.end(good)
    await box.look(0.0)
    for number in range(4, 6):
        await fail(box, number, "a")
    assert (await box.unavailable())["GPU-a"] is None
    await fail(box, 6, "a")
    again = box.quarantines.get("GPU-a", QuarantineCause.FAILS_FAST)
    assert again is not None
    assert again.until_s == world.now_s + 300.0


async def test_trainings_that_run_on_speak_for_their_device(box: Host) -> None:
    await box.start("long", "b", deployment="d")
    await box.look(61.0)
    for number in range(3):
        await fail(box, number, "a", deployment="d")
    assert (await box.unavailable())["GPU-a"] is not None  # elsewhere this kind works


async def test_a_broken_script_closes_no_device(box: Host) -> None:
    for number in range(4):
        for device in ("a", "b"):
            await fail(box, number, device, deployment="broken")
    assert await box.unavailable() == {"GPU-a": None, "GPU-b": None}


@pytest.mark.parametrize("exit_code", [-9, -15, 137, 143, -2, 129, 126, 127])
async def test_what_was_ended_from_outside_or_not_begun_says_nothing_about_a_device(
    box: Host, exit_code: int
) -> None:
    for number in range(4):
        await fail(box, number, "a", exit_code=exit_code)
    assert (await box.unavailable())["GPU-a"] is None


@pytest.mark.parametrize("exit_code", [1, 3, -11, 139, -6])
async def test_errors_and_faults_of_its_process_speak_against_a_device(
    box: Host, exit_code: int
) -> None:
    for number in range(3):
        await fail(box, number, "a", exit_code=exit_code)
    assert (await box.unavailable())["GPU-a"] is not None


@pytest.mark.parametrize(
    ("state", "is_blamed"),
    [
        (StateType.FAILED, True),
        (StateType.COMPLETED, False),
        (StateType.CANCELLED, False),
        (StateType.SCHEDULED, False),
        (None, False),
    ],
)
async def test_a_flow_that_failed_ends_with_0_so_its_state_is_asked_for(
    box: Host, world: World, state: StateType | None, is_blamed: bool
) -> None:
    for number in range(3):
        slot = await box.start(f"r{number}", "a")
        if state is not None:
            world.states[f"r{number}"] = state
        await box.end(slot)
    await box.look()
    assert ((await box.unavailable())["GPU-a"] is not None) is is_blamed


async def test_late_cancelled_and_unlaunched_trainings_do_not_count(
    box: Host, world: World
) -> None:
    for number in range(3):
        await box.end(await box.start(f"late {number}", "a"), 1, after_s=60.0)
        cancelled = await box.start(f"cancelled {number}", "a")
        cancelled.stop_requested_at_s = world.now_s
        await box.end(cancelled, 1)
        unlaunched = await box.start(f"unlaunched {number}", "a")
        await box.slots.advance(unlaunched, launched_at_s=None)
        await box.end(unlaunched, None)
    await box.look()
    assert (await box.unavailable())["GPU-a"] is None


async def test_a_lack_of_memory_and_what_is_released_again_say_nothing_about_a_device(
    box: Host,
) -> None:
    for number in range(3):
        short = await box.start(f"short {number}", "a")
        short.verdict = Verdict(again=False, tally=Tally(out_of_memory=3), sentence="Memory.")
        await box.end(short, 1)
        again = await box.start(f"again {number}", "a")
        again.verdict = Verdict(again=True, tally=Tally(), sentence="Requeued.")
        await box.end(again, 1)
    await box.look()
    assert (await box.unavailable())["GPU-a"] is None


async def test_a_gang_speaks_against_all_its_devices(box: Host) -> None:
    for number in range(3):
        await fail(box, number, "a", "b")
    assert None not in (await box.unavailable()).values()


async def test_failing_fast_can_be_left_unjudged(tmp_path: Path, world: World) -> None:
    with host(tmp_path, world, rule=FailFastRule(failures=0)) as box:
        for number in range(9):
            await fail(box, number, "a")
        assert (await box.unavailable())["GPU-a"] is None


# --- restarts ---


async def test_a_quarantine_survives_the_worker_and_ends_in_its_next_life(
    tmp_path: Path, world: World
) -> None:
    with host(tmp_path, world) as box:
        for number in range(3):
            await fail(box, number, "a")
        why = (await box.unavailable())["GPU-a"]
        assert why is not None
    with host(tmp_path, world) as box:
        assert (await box.unavailable())["GPU-a"] == why
        assert await box.look(300.0)
        assert (await box.unavailable())["GPU-a"] is None
        await fail(box, 9, "a")
        again = box.quarantines.get("GPU-a", QuarantineCause.FAILS_FAST)
        assert again is not None
        assert again.until_s == world.now_s + 600.0


async def test_a_quarantine_that_cannot_be_written_counts_and_is_written_later(
    box: Host, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StoreUnusableError("sqlite:///store.db", "the disk is full")

    world.change("a", unavailable="lost")
    with monkeypatch.context() as patch:
        patch.setattr(box.store, "record_quarantine", full)
        await box.look()
    assert "the disk is full" in caplog.text
    assert (await box.unavailable())["GPU-a"] == "lost"
    assert box.store.open_quarantines("box") == ()
    await box.look()
    assert [each.device for each in box.store.open_quarantines("box")] == ["GPU-a"]


# --- people ---


async def test_a_drained_device_takes_nothing_until_it_is_released(box: Host, world: World) -> None:
    slot = await box.start("r", "a")
    order = Order(device="GPU-a", drained=True, at_s=world.now_s, reason="fan", by="ann")
    box.orders.give(order)
    await box.look()
    assert await box.unavailable() == {"GPU-a": "drained by ann: fan", "GPU-b": None}
    assert slot.stop_requested_at_s is None  # what runs there goes on
    box.orders.give(Order(device="GPU-a", drained=False, at_s=world.now_s))
    assert await box.look()
    assert (await box.unavailable())["GPU-a"] is None


async def test_a_drain_with_an_end_ends_by_itself(box: Host, world: World) -> None:
    end_s = world.now_s + 60.0
    box.orders.give(
        Order(device="GPU-a", drained=True, at_s=world.now_s, reason="fan", until_s=end_s)
    )
    await box.look(59.0)
    assert (await box.unavailable())["GPU-a"] == "drained: fan (until 1970-01-01 00:17 UTC)"
    assert await box.look(3.0)
    assert (await box.unavailable())["GPU-a"] is None


async def test_a_person_may_end_a_quarantine_and_the_count_begins_again(
    box: Host, world: World
) -> None:
    for number in range(3):
        await fail(box, number, "a")
    world.now_s += 1.0
    box.orders.give(Order(device="GPU-a", drained=False, at_s=world.now_s))
    assert await box.look()
    assert (await box.unavailable())["GPU-a"] is None
    for number in range(4, 6):
        await fail(box, number, "a")
    assert (await box.unavailable())["GPU-a"] is None
    await fail(box, 6, "a")  # the word of the past does not bind
    await box.look()
    again = box.quarantines.get("GPU-a", QuarantineCause.FAILS_FAST)
    assert again is not None
    assert again.until_s is not None
    assert again.until_s - again.begun_at_s == 300.0


async def test_a_word_does_not_mend_a_broken_device(box: Host, world: World) -> None:
    world.change("a", unavailable="lost")
    await box.look()
    box.orders.give(Order(device="GPU-a", drained=False, at_s=world.now_s))
    await box.look()
    assert (await box.unavailable())["GPU-a"] == "lost"


# --- what trainings leave behind (apache/mxnet#4242, pytorch/pytorch#4293, #3979) ---


async def test_memory_that_a_dead_training_keeps_closes_its_device_until_it_is_back(
    box: Host, world: World
) -> None:
    slot = await box.start("z", "a", pids=[7, 8])
    world.change("a", used_mib=900, used_by_pid={7: 600, 8: 300})
    await box.look()
    await box.end(slot)
    await box.look()
    assert await box.unavailable() == {
        "GPU-a": "900 MiB of 'train z' are still in use although its processes are gone",
        "GPU-b": None,
    }
    world.change("a", used_mib=600, used_by_pid={7: 600})
    await box.look()
    assert (await box.unavailable())["GPU-a"] is not None
    world.change("a", unavailable="NVML cannot read it: Unknown Error", used_by_pid={})
    await box.look()  # unreadable is not empty
    assert len(box.store.open_quarantines("box")) == 2
    world.change("a", unavailable=None, used_mib=0)
    assert await box.look()
    assert (await box.unavailable())["GPU-a"] is None


async def test_memory_that_nobody_is_said_to_have_closes_the_device_too(
    box: Host, world: World
) -> None:
    # A zombie's memory: in use, and in no list of processes.
    world.change("a", used_mib=300)
    slot = await box.start("z", "a", pids=[7])
    world.change("a", used_mib=5300, used_by_pid={7: 5000})
    await box.look()
    world.change("a", used_by_pid={})
    await box.end(slot)
    await box.look()
    assert "5000 MiB of 'train z'" in ((await box.unavailable())["GPU-a"] or "")
    world.change("a", used_mib=310)
    assert await box.look()
    assert (await box.unavailable())["GPU-a"] is None


async def test_memory_that_is_still_out_survives_a_restart(tmp_path: Path, world: World) -> None:
    with host(tmp_path, world) as box:
        slot = await box.start("z", "a", pids=[7])
        world.change("a", used_mib=900, used_by_pid={7: 900})
        await box.end(slot)
        await box.look()
    with host(tmp_path, world) as box:
        await box.look()
        assert (await box.unavailable())["GPU-a"] is not None
        world.change("a", used_mib=0, used_by_pid={})
        assert await box.look()
        assert (await box.unavailable())["GPU-a"] is None


async def test_a_process_that_does_not_die_closes_its_device_and_no_other(
    box: Host, world: World
) -> None:
    slot = await box.start("stuck", "a", pids=[7])
    await box.slots.advance(slot, state=SlotState.DRAINING, ended_at_s=world.now_s)
    await box.look(29.0)
    assert (await box.unavailable())["GPU-a"] is None
    await box.look(2.0)
    assert await box.unavailable() == {
        "GPU-a": "processes of 'train stuck' do not end although they were killed",
        "GPU-b": None,
    }
    slot.pids = []
    await box.slots.free(slot)
    assert await box.look()
    assert (await box.unavailable())["GPU-a"] is None


# --- how often ---


async def test_devices_are_read_now_and_then_and_at_once_when_a_slot_is_free(
    box: Host, world: World
) -> None:
    await box.look()
    world.change("a", unavailable="lost")
    await box.look(1.0)
    assert box.quarantines.devices() == set()
    await box.look(1.0)
    assert box.quarantines.devices() == {"GPU-a"}


async def test_a_device_that_appears_is_taken_into_care(box: Host, world: World) -> None:
    world.gpus.append(gpu("c", unavailable="lost"))
    await box.look()
    assert (await box.unavailable())["GPU-c"] == "lost"
