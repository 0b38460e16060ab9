"""A whole worker on the session's server, with trainings in processes of their own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.states import Cancelling

from tests.worker.conftest import Pool, Working
from tests.worker.waiting import eventually
from xonar_prefect.core.codec import OBSERVATION_ARTIFACT_TYPE
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker import starting
from xonar_prefect.worker.concluding import CRASH_ARTIFACT
from xonar_prefect.worker.launching import Launch
from xonar_prefect.worker.processes import ProcessTrees, started_ticks
from xonar_prefect.worker.worker import XonarWorker

pytestmark = pytest.mark.server

Ledger = Callable[[FlowRun], tuple[LedgerEntry, ...]]


async def state_is(pool: Pool, run: FlowRun, state: str) -> str:
    """Wait for a state; returns its message."""

    async def reached() -> bool:
        return await pool.state(run) == state

    await eventually(reached)
    return str((await pool.read(run)).state.message)  # type: ignore[union-attr]


async def code_is(pool: Pool, run: FlowRun, *codes: ReasonCode) -> None:
    async def shown() -> bool:
        return await pool.code(run) in {code.value for code in codes}

    await eventually(shown)


async def slot_is_free(ledger: Ledger, run: FlowRun) -> LedgerEntry:
    def ended() -> bool:
        return [entry.state for entry in ledger(run)] == [SlotState.ENDED]

    await eventually(ended)
    return ledger(run)[0]


async def test_a_training_is_profiled_alone_then_paired_with_its_kind_and_a_third_waits(
    pool: Pool, working: Working, ledger: Ledger, settings: XonarSettings
) -> None:
    # A kind of its own: what other tests have published is known to every worker.
    parameters = {"kind": pool.name, "until": str(pool.directory / "gate")}
    # `adaptive` leaves it alone where this machine was busy and the profile says so.
    pairing = settings.model_copy(update={"policy": "complementary"})
    async with working(settings=pairing) as worker:
        slots = worker._parts.slots
        # Both at once: the profile of the first may settle before the second is read.
        first = await pool.submit(name="first", parameters=parameters)
        second = await pool.submit(name="second", parameters=parameters)
        await eventually(lambda: slots.get(str(first.id)))
        await code_is(
            pool, second, ReasonCode.PARTNER_UNPROFILED, ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE
        )
        await state_is(pool, second, "AwaitingGPU")

        # As soon as the profile has settled, a partner joins.
        joined = await eventually(lambda: slots.get(str(second.id)))
        assert joined.entry.partners == (str(first.id),)
        assert joined.entry.code == ReasonCode.COMPLEMENTS_PARTNER.value
        third = await pool.submit(name="third", parameters=parameters)
        reason = await state_is(pool, third, "AwaitingGPU")
        await code_is(pool, third, ReasonCode.NO_FREE_SLOT)
        assert reason == (await pool.read(third)).labels["xonar.reason"]

        # Who needs no device does not wait for one.
        without = await pool.succeed(gpus=0)
        await state_is(pool, without, "Completed")
        assert (await slot_is_free(ledger, without)).devices == ()

        def measured_together() -> bool:
            return any(window.partners and window.steps >= 10 for window in joined.meter.co_runs)

        await eventually(measured_together)
        placement = joined.run_directory.read_placement()
        pool.open("gate")
        for run in (first, second, third):
            await state_is(pool, run, "Completed")
            await slot_is_free(ledger, run)

    assert placement is not None
    assert placement.shared
    assert list(placement.known_profiles) == [joined.entry.profile_key]
    tasks = {run.name: await pool.task_runs(run) for run in (first, second, third)}
    profiling = {name: states["profile fit"] for name, states in tasks.items()}
    assert profiling == {"first": "Completed", "second": "Cached", "third": "Cached"}
    (entry,) = ledger(second)
    (window,) = [each for each in entry.co_runs if each.partners == (str(first.id),)]
    assert window.partner_keys == (entry.profile_key,)
    assert window.predicted_slowdown is not None
    (release, *_) = await pool.artifacts(second, "xonar-decision")
    assert "first" in str(release.data)
    observations = await pool.artifacts(second, f"xonar-observation-data-{entry.profile_key}")
    assert [each.type for each in observations] == [OBSERVATION_ARTIFACT_TYPE]


async def test_what_can_never_start_is_refused_with_the_reason(
    pool: Pool, working: Working
) -> None:
    async with working():
        huge = await pool.tiny("exit=0", memory_request_mib=10**8)
        gang = await pool.tiny("exit=0", gpus=3)
        misspelt = await pool.submit(job_variables={"memory_request_mb": 500})
        assert "needs 100000000 MiB on a device, but CPU core" in await state_is(
            pool, huge, "Refused"
        )
        assert "needs 3 devices" in await state_is(pool, gang, "Refused")
        assert await state_is(pool, misspelt, "Refused") == (
            "There is no job variable 'memory_request_mb'; did you mean 'memory_request_mib'?"
        )
        await code_is(pool, misspelt, ReasonCode.WRONG_JOB_VARIABLE)
        # None of it keeps the others from running.
        await state_is(pool, await pool.succeed(), "Completed")


async def test_a_training_that_dies_is_crashed_with_its_output_and_its_slot_is_free(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working():
        before = await pool.tiny("say=almost", "exit=3")
        exits = await pool.tiny("state=RUNNING", "say=epoch 7", "exit=3")
        killed = await pool.tiny("state=RUNNING", "kill=9")
        unknown = await pool.submit(job_variables={"command": "no-such-command --really"})
        message = await state_is(pool, exits, "Crashed")
        assert message == (
            "The training's command ended with exit code 3 before the run was finished."
        )
        assert "signal 9 (SIGKILL)" in await state_is(pool, killed, "Crashed")
        assert "exit code 127" in await state_is(pool, unknown, "Crashed")
        await state_is(pool, before, "Crashed")
        assert (await slot_is_free(ledger, exits)).exit_code == 3
        assert (await slot_is_free(ledger, killed)).exit_code == -signal.SIGKILL
        await state_is(pool, await pool.succeed(), "Completed")
    (artifact,) = await pool.artifacts(exits, CRASH_ARTIFACT)
    assert artifact.description == message
    assert "    epoch 7" in str(artifact.data)
    (artifact,) = await pool.artifacts(unknown, CRASH_ARTIFACT)
    assert "Could not start 'no-such-command'" in str(artifact.data)
    assert [len(pool.starts(run)) for run in (before, exits, killed)] == [1, 1, 1]


@pytest.mark.parametrize("gate", ["never", "never-stubborn"])
async def test_what_a_training_leaves_behind_is_ended_before_its_slot_is_given_away(
    pool: Pool, working: Working, ledger: Ledger, gate: str
) -> None:
    async with working():
        leaving = await pool.succeed(f"leave={gate}")
        heir = await pool.succeed()
        await eventually(lambda: pool.left(leaving))
        left = pool.left(leaving)
        assert left is not None
        await state_is(pool, leaving, "Completed")
        await eventually(lambda: pool.starts(heir))
        assert started_ticks(left) is None
        await state_is(pool, heir, "Completed")
        assert await pool.state(leaving) == "Completed"  # it had succeeded all the same


async def test_a_cancelled_flow_run_ends_with_its_whole_process_tree(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working() as worker:
        run = await pool.submit(parameters={"until": "/never", "child": True})
        held = await pool.succeed()
        slot = await eventually(lambda: worker._parts.slots.get(str(run.id)))
        await eventually(lambda: slot.status and slot.status.steps_done)
        assert len(slot.pids) >= 3  # launcher, flow run, and its child in another session
        await pool.client.set_flow_run_state(run.id, Cancelling())
        await state_is(pool, run, "Cancelled")
        await slot_is_free(ledger, run)
        assert slot.entry.run_directory not in ProcessTrees().scan()
        await state_is(pool, held, "Completed")


async def test_a_training_that_will_not_end_is_killed_when_cancelled_or_deleted(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working() as worker:
        stubborn = await pool.tiny("stubborn", "state=RUNNING", "wait=never")
        doomed = await pool.tiny("state=RUNNING", "wait=never")
        waiting = await pool.succeed()
        await state_is(pool, stubborn, "Running")
        await pool.client.set_flow_run_state(waiting.id, Cancelling())
        await pool.client.set_flow_run_state(stubborn.id, Cancelling())
        assert await state_is(pool, stubborn, "Cancelled") == "Cancelled."
        await slot_is_free(ledger, stubborn)
        await state_is(pool, doomed, "Running")
        await pool.client.delete_flow_run(doomed.id)
        await slot_is_free(ledger, doomed)
        assert ProcessTrees().scan().keys().isdisjoint({ledger(doomed)[0].run_directory})
        await eventually(lambda: len(worker._parts.slots) == 0)
    assert await pool.state(waiting) == "Cancelled"
    assert pool.starts(waiting) == []


async def test_a_paused_pool_releases_nothing_until_it_is_resumed(
    pool: Pool, working: Working
) -> None:
    await pool.update(is_paused=True)
    async with working():
        run = await pool.succeed()
        await code_is(pool, run, ReasonCode.POOL_PAUSED)
        assert await state_is(pool, run, "AwaitingGPU") == "The work pool is paused."
        assert pool.starts(run) == []
        await pool.update(is_paused=False)
        await state_is(pool, run, "Completed")


async def test_the_limit_of_a_worker_counts_those_that_run(pool: Pool, working: Working) -> None:
    async with working(limit=1):
        first = await pool.succeed("wait=gate", gpus=0)
        await state_is(pool, first, "Running")
        others = [await pool.succeed(gpus=0), await pool.succeed(gpus=0)]
        for run in others:
            await code_is(pool, run, ReasonCode.WORKER_LIMIT)
        assert [pool.starts(run) for run in others] == [[], []]
        pool.open("gate")
        for run in others:
            await state_is(pool, run, "Completed")


async def test_trainings_that_declare_their_memory_share_a_device_unprofiled(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working():
        first = await pool.succeed("wait=gate", memory_request_mib=100)
        second = await pool.succeed("wait=gate", memory_request_mib=100)
        for run in (first, second):
            await state_is(pool, run, "Running")
        pool.open("gate")
        for run in (first, second):
            await state_is(pool, run, "Completed")
        assert (await slot_is_free(ledger, second)).partners == (str(first.id),)


async def test_an_observing_worker_explains_and_shares_nothing(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working(observe_only=True):
        first = await pool.succeed("wait=gate", memory_request_mib=100)
        await state_is(pool, first, "Running")
        second = await pool.succeed(memory_request_mib=100)
        await code_is(pool, second, ReasonCode.OBSERVE_ONLY)
        await state_is(pool, second, "AwaitingGPU")
        pool.open("gate")
        await state_is(pool, second, "Completed")
        assert (await slot_is_free(ledger, second)).partners == ()


async def test_a_worker_that_runs_once_releases_once_and_stays_until_that_has_ended(
    pool: Pool, settings: XonarSettings, ledger: Ledger
) -> None:
    first = await pool.succeed("wait=gate")
    second = await pool.succeed()
    worker = XonarWorker(pool.name, name="one", settings=settings)
    serving = asyncio.ensure_future(worker.start(run_once=True, printer=lambda *_: None))
    await state_is(pool, first, "Running")
    assert not serving.done()
    pool.open("gate")
    await serving
    assert await pool.state(first) == "Completed"
    assert [entry.state for entry in ledger(first)] == [SlotState.ENDED]
    assert pool.starts(second) == []


async def test_a_run_directory_holds_what_the_worker_told_and_nothing_secret(
    pool: Pool, working: Working, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XONAR_STORE_URL", "sqlite:////tmp/never-used-secret")
    async with working():
        run = await pool.succeed(memory_request_mib=100, env={"COLOUR": "blue"})
        await state_is(pool, run, "Completed")
        entry = await slot_is_free(ledger, run)
    directory = RunDirectory(Path(entry.run_directory))
    placement = directory.read_placement()
    assert placement is not None
    assert placement == replace(
        placement, devices=entry.devices, device_kind="cpu", memory_request_mib=100, shared=False
    )
    files = [path for path in directory.path.rglob("*") if path.is_file()]
    assert all("blue" not in path.read_text() for path in files)


async def test_out_of_memory_is_no_end_for_a_parent_that_waits_for_the_training(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    await pool.deploy("plain")
    async with working() as worker:
        partner = await pool.succeed("wait=gate", memory_request_mib=100)
        await state_is(pool, partner, "Running")
        parent = asyncio.ensure_future(
            run_deployment(
                f"train/{pool.name}-plain",
                parameters={"kind": pool.name, "room": str(pool.directory / "room")},
                job_variables={"memory_request_mib": 400},
                as_subflow=False,
                poll_interval=0.2,
                client=pool.client,  # it would not close one of its own
            )
        )
        finished = await asyncio.wait_for(parent, 240)
        assert await pool.state(partner) == "Running"
        assert worker._parts.slots.get(str(partner.id))
        pool.open("gate")
        await state_is(pool, partner, "Completed")
    assert finished.state is not None
    assert finished.state.is_completed()
    history = await pool.client.read_flow_run_states(finished.id)
    assert [state.name for state in history if state.is_final()] == ["Completed"]
    requeued = [state.message or "" for state in history if state.name == "AwaitingGPU"]
    assert requeued[0].startswith("Requeued, with more memory (release 2 of 3): The training ran")
    second, first = ledger(finished)
    assert first.request_mib == 400
    assert second.request_mib is not None
    assert second.request_mib >= 500


async def test_what_the_host_kills_is_started_again_on_its_next_placement(
    pool: Pool, working: Working, ledger: Ledger
) -> None:
    async with working():
        run = await pool.succeed("first=9", max_requeues=1)
        await state_is(pool, run, "Completed")
        await eventually(lambda: ledger(run)[0].state is SlotState.ENDED)
    assert len(pool.starts(run)) == 2
    # A release that came too early for the server has no launch, and is followed by another.
    launched = [entry for entry in ledger(run) if entry.launched_at_s is not None]
    assert [entry.exit_code for entry in launched] == [0, -signal.SIGKILL]
    history = await pool.client.read_flow_run_states(run.id)
    assert [state.name for state in history if state.is_final()] == ["Completed"]


async def test_a_host_that_cannot_launch_crashes_nobody(
    pool: Pool, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    start = starting.start

    async def failing(launch: Launch) -> subprocess.Popen[bytes]:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise OSError(11, "Resource temporarily unavailable")
        return await start(launch)

    monkeypatch.setattr(starting, "start", failing)
    async with working():
        run = await pool.succeed()
        await state_is(pool, run, "Completed")
    history = await pool.client.read_flow_run_states(run.id)
    assert [state.name for state in history if state.is_final()] == ["Completed"]
