"""How a training ended, in one true sentence, and as a final state where it set none itself."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Cancelling, Completed, Failed, Pending, Running, Scheduled

from tests.worker.conftest import Pool
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.worker.concluding import CRASH_ARTIFACT, conclude, exit_sentence
from xonar_prefect.worker.slots import Slot

KILLED = (
    "The training was ended by signal 9 (SIGKILL). Often this is the host running out of memory: "
    "look at its kernel log."
)


@pytest.mark.parametrize(
    ("exit_code", "sentence"),
    [
        (None, "The training's processes disappeared without an exit code."),
        (0, "The training's command ended with exit code 0 before the run was finished."),
        (3, "The training's command ended with exit code 3 before the run was finished."),
        (
            127,
            (
                "The training's command ended with exit code 127 before the run was finished. The "
                "command or the working directory may not exist: see the end of its output."
            ),
        ),
        (130, "The training's command ended with exit code 130 before the run was finished."),
        (137, KILLED),
        (-9, KILLED),
        (-15, "The training was ended by signal 15 (SIGTERM)."),
        (143, "The training was ended by signal 15 (SIGTERM)."),
        (139, "The training was ended by signal 11 (SIGSEGV)."),
        (-40, "The training was ended by signal 40 (a real-time signal)."),
    ],
)
def test_every_exit_has_its_sentence(exit_code: int | None, sentence: str) -> None:
    assert exit_sentence(exit_code) == sentence


@pytest.fixture
async def run(pool: Pool) -> FlowRun:
    return await pool.submit()


@pytest.fixture
def slot(run: FlowRun, tmp_path: Path) -> Slot:
    slot = Slot(
        entry=LedgerEntry(
            run_id=str(run.id),
            name=run.name,
            worker="one",
            state=SlotState.DRAINING,
            run_directory=str(tmp_path / "run"),
            reserved_at_s=0.0,
            exit_code=3,
        ),
        training=Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0),
    )
    slot.run_directory.path.mkdir()
    slot.run_directory.output.write_text("epoch 1\n```\nout of paper\n")
    return slot


@pytest.mark.server
@pytest.mark.parametrize("state", [Pending(), Running()], ids=lambda state: state.name)
async def test_a_run_that_did_not_finish_crashed_with_the_end_of_its_output(
    pool: Pool, run: FlowRun, slot: Slot, state: State
) -> None:
    await pool.client.set_flow_run_state(run.id, state, force=True)
    await conclude(pool.client, slot)
    final = (await pool.read(run)).state
    assert final is not None
    assert (final.type, final.message) == (StateType.CRASHED, exit_sentence(3))
    (artifact,) = await pool.artifacts(run, CRASH_ARTIFACT)
    assert artifact.description == exit_sentence(3)
    assert "\n    epoch 1\n    ```\n    out of paper\n" in str(artifact.data)


@pytest.mark.server
@pytest.mark.parametrize(
    "state", [Completed(), Failed(), Scheduled(name="AwaitingRetry")], ids=lambda state: state.name
)
async def test_a_run_that_ended_itself_or_waits_again_is_left_alone(
    pool: Pool, run: FlowRun, slot: Slot, state: State
) -> None:
    await pool.client.set_flow_run_state(run.id, state, force=True)
    before = (await pool.read(run)).state_id
    await conclude(pool.client, slot)
    assert (await pool.read(run)).state_id == before
    assert await pool.artifacts(run, CRASH_ARTIFACT) == []


@pytest.mark.server
async def test_a_run_that_died_while_it_waited_for_its_own_retry_crashed(
    pool: Pool, run: FlowRun, slot: Slot
) -> None:
    policy = run.empirical_policy.model_copy(update={"retry_type": "in_process"})
    await pool.client.update_flow_run(run.id, empirical_policy=policy)
    await pool.client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    await conclude(pool.client, slot)
    assert await pool.state(run) == "Crashed"


@pytest.mark.server
async def test_a_run_that_was_being_cancelled_is_cancelled(
    pool: Pool, run: FlowRun, slot: Slot
) -> None:
    slot.stop_reason = "Cancelled."
    await pool.client.set_flow_run_state(run.id, Cancelling(), force=True)
    await conclude(pool.client, slot)
    assert await pool.state(run) == "Cancelled"
    assert await pool.artifacts(run, CRASH_ARTIFACT) == []


@pytest.mark.server
async def test_a_run_that_was_deleted_needs_no_end(pool: Pool, run: FlowRun, slot: Slot) -> None:
    await pool.client.delete_flow_run(UUID(str(run.id)))
    await conclude(pool.client, slot)
