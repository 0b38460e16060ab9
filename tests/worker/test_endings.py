"""How a training ended, from exit code, run state, output and host."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Crashed, Failed, Pending, Running

from xonar_prefect.core.endings import Cause, Ending
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.models import Training
from xonar_prefect.run_directory import Exit, OutOfMemory
from xonar_prefect.worker.endings import ending_of, exit_sentence
from xonar_prefect.worker.processes import boot_id
from xonar_prefect.worker.slots import Slot

KILLED = "The training was ended by signal 9 (SIGKILL)."
ASK_THE_KERNEL = " Often this is the host running out of memory: look at its kernel log."
RAN_OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


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
        (137, KILLED + ASK_THE_KERNEL),
        (-9, KILLED + ASK_THE_KERNEL),
        (-15, "The training was ended by signal 15 (SIGTERM)."),
        (143, "The training was ended by signal 15 (SIGTERM)."),
        (139, "The training was ended by signal 11 (SIGSEGV)."),
        (-40, "The training was ended by signal 40 (a real-time signal)."),
    ],
)
def test_every_exit_has_its_sentence(exit_code: int | None, sentence: str) -> None:
    assert exit_sentence(exit_code) == sentence


@pytest.mark.parametrize(
    ("oom_kills", "hint"),
    [
        (None, ASK_THE_KERNEL),
        (0, " The host did not run out of memory meanwhile: somebody sent it."),
        (1, " The host ran out of memory: its kernel ended a process for that meanwhile."),
    ],
)
def test_the_host_is_named_where_its_kernel_says_so(oom_kills: int | None, hint: str) -> None:
    assert exit_sentence(-9, oom_kills) == KILLED + hint


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(
        entry=LedgerEntry(
            run_id="run",
            name="run",
            worker="one",
            state=SlotState.DRAINING,
            run_directory=str(tmp_path / "run"),
            boot_id=boot_id(),
            reserved_at_s=0.0,
        ),
        training=Training(run_id="run", name="run", submitted_at_s=0.0),
    )
    slot.run_directory.path.mkdir()
    return slot


def exits(slot: Slot, code: int, oom_kills: int | None = None) -> None:
    slot.run_directory.write(Exit(exit_code=code, ended_at_s=1.0, oom_kills=oom_kills))


def cause(slot: Slot, state: State) -> Cause | None:
    ending = ending_of(slot, state)
    return None if ending is None else ending.cause


@pytest.mark.parametrize("state", [Pending(), Running()], ids=lambda state: state.name)
def test_processes_that_left_no_exit_code_have_vanished(slot: Slot, state: State) -> None:
    assert cause(slot, state) is Cause.VANISHED


@pytest.mark.parametrize(
    ("code", "oom_kills", "expected"),
    [
        (3, None, Cause.ITSELF),
        (0, None, Cause.ITSELF),
        (127, None, Cause.ITSELF),
        (-signal.SIGSEGV, None, Cause.ITSELF),
        (-signal.SIGTERM, None, Cause.ITSELF),
        (-signal.SIGKILL, None, Cause.KILLED),
        (128 + signal.SIGKILL, 0, Cause.KILLED),
        (-signal.SIGKILL, 1, Cause.HOST_OUT_OF_MEMORY),
    ],
)
def test_only_what_is_done_to_a_training_is_the_fault_of_the_host(
    slot: Slot, code: int, oom_kills: int | None, expected: Cause
) -> None:
    exits(slot, code, oom_kills)
    assert cause(slot, Running()) is expected


def test_an_engine_that_was_killed_is_known_by_what_its_parent_reports(slot: Slot) -> None:
    exits(slot, 0, 2)
    reported = Crashed(message="Process exited with status code: -9. Process exited due to a")
    assert cause(slot, reported) is Cause.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize(
    "message", ["Flow run was aborted.", "Process exited with status code: 1. It failed."]
)
def test_what_crashed_by_itself_has_said_so(slot: Slot, message: str) -> None:
    exits(slot, 1)
    assert ending_of(slot, Crashed(message=message)) is None


def test_another_boot_means_that_the_host_was_restarted(slot: Slot) -> None:
    slot.entry = replace(slot.entry, boot_id="an earlier one")
    for state in (Running(), Crashed(message="Execution was cancelled by the runtime.")):
        ending = ending_of(slot, state)
        assert ending is not None
        assert ending.cause is Cause.HOST_REBOOTED
        assert ending.sentence == "The host was restarted while the training ran."
    # What had ended before it, has ended as it did.
    exits(slot, 3)
    assert cause(slot, Running()) is Cause.ITSELF
    assert cause(slot, Failed(message="ValueError: bad")) is None


def test_a_training_tells_itself_that_it_ran_out_of_memory(slot: Slot) -> None:
    slot.run_directory.write(OutOfMemory(message=RAN_OUT))
    exits(slot, 0)
    ending = ending_of(slot, Running())
    assert ending is not None
    assert ending.cause is Cause.GPU_OUT_OF_MEMORY
    assert ending.sentence == f"The training ran out of device memory ({RAN_OUT})."


def test_a_flow_that_nobody_stood_beside_tells_it_by_the_message_of_its_failure(
    slot: Slot,
) -> None:
    failed = Failed(message=f"Flow run encountered an exception: {RAN_OUT}\n...")
    assert cause(slot, failed) is Cause.GPU_OUT_OF_MEMORY
    assert cause(slot, Failed(message="Flow run encountered an exception: ValueError: x")) is None


def test_a_program_of_any_kind_tells_it_by_the_end_of_its_output(slot: Slot) -> None:
    slot.run_directory.output.write_text(f"epoch 1\n{RAN_OUT}\n")
    exits(slot, 1)
    assert cause(slot, Running()) is Cause.GPU_OUT_OF_MEMORY


def test_a_complaint_long_before_the_end_is_not_why_it_ended(slot: Slot) -> None:
    slot.run_directory.output.write_text(f"{RAN_OUT}\n" + "epoch\n" * 100)
    exits(slot, 1)
    assert cause(slot, Running()) is Cause.ITSELF


def test_a_long_message_is_shortened(slot: Slot) -> None:
    slot.run_directory.write(OutOfMemory(message="CUDA out of memory " * 100))
    ending = ending_of(slot, Running())
    assert ending is not None
    assert len(ending.sentence) < 300


def test_what_was_stopped_to_run_again_counts_as_what_it_was_stopped_for(slot: Slot) -> None:
    stopped = Ending(cause=Cause.WORKER_STOPPED, sentence="Its worker was stopped.")
    slot.stopped_to_run_again = stopped
    slot.stop_requested_at_s = datetime.now(timezone.utc).timestamp() - 1
    exits(slot, -15)
    assert ending_of(slot, Running()) is stopped
    assert ending_of(slot, Crashed()) is stopped
    # Unless it had failed before.
    slot.stop_requested_at_s += 3600
    assert ending_of(slot, Failed(message="ValueError: bad")) is None
