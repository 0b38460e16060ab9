"""Gives a training whose command has ended its true final state, if it did not do so itself."""

from __future__ import annotations

import signal
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from xonar_prefect.worker.output import last_lines
from xonar_prefect.worker.slots import Slot

CRASH_ARTIFACT = "xonar-crash"

_NOT_STARTED = 127  # what the launcher, like a shell, reports of a command it could not start
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


def exit_sentence(exit_code: int | None) -> str:
    """Say how a command ended."""
    if exit_code is None:
        return "The training's processes disappeared without an exit code."
    # `prefect flow-run execute` reports a signal the way a shell does: 128 + its number.
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code < 0 or number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT):
        name = _SIGNAL_NAMES.get(number, "a real-time signal")
        hint = (
            " Often this is the host running out of memory: look at its kernel log."
            if number == signal.SIGKILL
            else ""
        )
        return f"The training was ended by signal {number} ({name}).{hint}"
    hint = (
        " The command or the working directory may not exist: see the end of its output."
        if exit_code == _NOT_STARTED
        else ""
    )
    return (
        f"The training's command ended with exit code {exit_code} before the run was finished."
        f"{hint}"
    )


def waits_in_its_process(flow_run: FlowRun) -> bool:
    """Tell whether a scheduled run is about to be tried again by the process it runs in."""
    policy = flow_run.empirical_policy
    return policy is not None and policy.retry_type == "in_process"


async def conclude(client: PrefectClient, slot: Slot) -> None:
    """Set the run's final state where its own process could not.

    A run that is final, scheduled again or paused is left as it is.

    Raises:
        httpx.HTTPError: The server could not be asked; try again later.
    """
    run_id = UUID(slot.entry.run_id)
    try:
        flow_run = await client.read_flow_run(run_id)
    except ObjectNotFound:
        return
    state = flow_run.state
    unfinished = state is None or state.type in (StateType.PENDING, StateType.RUNNING)
    stopped = unfinished and slot.stop_requested_at_s is not None
    if state is None or stopped or state.type == StateType.CANCELLING:
        reason = slot.stop_reason or "Cancelled; its processes have ended."
        await client.set_flow_run_state(run_id, Cancelled(message=reason), force=True)
        return
    # It waited in its own process to be tried again: nobody else will do that.
    retries = state.is_scheduled() and waits_in_its_process(flow_run)
    if state.type not in (StateType.PENDING, StateType.RUNNING) and not retries:
        return
    sentence = exit_sentence(slot.entry.exit_code)
    await client.create_artifact(
        ArtifactCreate(
            key=CRASH_ARTIFACT,
            type="markdown",
            description=sentence,
            data=_crash_markdown(sentence, last_lines(slot.run_directory.output)),
            flow_run_id=run_id,
        )
    )
    await client.set_flow_run_state(run_id, Crashed(message=sentence))


def _crash_markdown(sentence: str, output: str) -> str:
    # Indented, so that nothing in the output can end the code block.
    block = "\n".join(f"    {line}" for line in output.splitlines())
    return f"{sentence}\n\nThe end of its output:\n\n{block}\n"
