"""How a training ended, from all that it left behind: exit code, run state, output, host."""

from __future__ import annotations

import re
import signal

from prefect.client.schemas.objects import State, StateType

from xonar_prefect.core.endings import INFRASTRUCTURE, Cause, Ending
from xonar_prefect.core.out_of_memory import last_words_of_memory
from xonar_prefect.run_directory import Exit
from xonar_prefect.worker.launcher import NOT_STARTED
from xonar_prefect.worker.output import last_lines
from xonar_prefect.worker.processes import boot_id
from xonar_prefect.worker.slots import Slot

# An error that ended a training is at the very end of what it said.
_LAST_WORDS = 20
_LONGEST_QUOTE = 200
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
# Prefect's client tries again what fails later, but not the first connection of a process; behind
# the error come the words of those who notice that it has ended.
_CUT_OFF = re.compile(r"^httpx\.(?:Connect|Read|Write|Pool)\w+.*", re.MULTILINE)
_LAST_WORDS_OF_ALL = 200
# What `prefect flow-run execute` writes when the engine below it has died.
_REPORTED_EXIT = re.compile(r"status code: (-?\d+)")


def exit_sentence(exit_code: int | None, oom_kills: int | None = None) -> str:
    """Say how a command ended.

    Args:
        exit_code: Its exit code; None when it left none.
        oom_kills: Processes that the kernel ended meanwhile for lack of memory; None if unknown.
    """
    if exit_code is None:
        return "The training's processes disappeared without an exit code."
    number = _signal_of(exit_code)
    if number is None:
        hint = (
            " The command or the working directory may not exist: see the end of its output."
            if exit_code == NOT_STARTED
            else ""
        )
        return (
            f"The training's command ended with exit code {exit_code} before the run was "
            f"finished.{hint}"
        )
    hint = ""
    if number == signal.SIGKILL and oom_kills:
        hint = " The host ran out of memory: its kernel ended a process for that meanwhile."
    elif number == signal.SIGKILL and oom_kills is None:
        hint = " Often this is the host running out of memory: look at its kernel log."
    elif number == signal.SIGKILL:
        hint = " The host did not run out of memory meanwhile: somebody sent it."
    name = _SIGNAL_NAMES.get(number, "a real-time signal")
    return f"The training was ended by signal {number} ({name}).{hint}"


def _signal_of(exit_code: int) -> int | None:
    if exit_code < 0:
        return -exit_code
    # `prefect flow-run execute` reports a signal the way a shell does: 128 + its number.
    number = exit_code - 128
    usual = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)
    return number if number in usual else None


def ending_of(slot: Slot, state: State) -> Ending | None:
    """Return how a release ended, from all that it left; None where it ended as it should.

    Args:
        slot: The training, with its run directory.
        state: The state of its run.
    """
    said = slot.run_directory.read_out_of_memory()
    if said is not None:
        return _out_of_memory(said.message)
    if slot.stopped_to_run_again is not None and not ended_before_stop(slot, state):
        return slot.stopped_to_run_again
    stop = slot.run_directory.read_stop() if slot.stop_requested_at_s is None else None
    if stop is not None and stop.runs_again and state.type is not StateType.FAILED:
        # By an earlier life of this worker, which did not see the end of it.
        return Ending(cause=Cause.WORKER_STOPPED, sentence=stop.reason)
    message = " ".join((state.message or "").split())
    if state.type is StateType.FAILED:
        # The error itself stands in the message of a flow that nobody stood beside.
        words = last_words_of_memory(message)
        return None if words is None else _out_of_memory(words)
    ended = slot.exit
    exit_code = ended.exit_code if ended else slot.entry.exit_code
    if state.type is StateType.CRASHED and (reported := _REPORTED_EXIT.search(message)):
        exit_code = int(reported[1])
    if slot.entry.boot_id is not None and slot.entry.boot_id != boot_id() and ended is None:
        return Ending(
            cause=Cause.HOST_REBOOTED, sentence="The host was restarted while the training ran."
        )
    ending = _from_exit(slot, exit_code, ended)
    # What crashed by itself has said so; only what was done to it can follow.
    done_to_it = ending.cause in INFRASTRUCTURE or ending.cause is Cause.GPU_OUT_OF_MEMORY
    return ending if state.type is not StateType.CRASHED or done_to_it else None


def cut_off_at_start(slot: Slot) -> Ending | None:
    """Return how a training ended that has not begun, if it was for want of the server."""
    error = _CUT_OFF.search(last_lines(slot.run_directory.output, _LAST_WORDS_OF_ALL))
    if error is None:
        return None
    return Ending(
        cause=Cause.NOT_LAUNCHED,
        sentence="The Prefect server could not be reached when the training started "
        f"({_shortened(error[0])}).",
    )


def _from_exit(slot: Slot, exit_code: int | None, ended: Exit | None) -> Ending:
    oom_kills = ended.oom_kills if ended else None
    sentence = exit_sentence(exit_code, oom_kills)
    if exit_code is None:
        return Ending(cause=Cause.VANISHED, sentence=sentence)
    if _signal_of(exit_code) == signal.SIGKILL:
        cause = Cause.HOST_OUT_OF_MEMORY if oom_kills else Cause.KILLED
        return Ending(cause=cause, sentence=sentence)
    if exit_code != 0:
        output = last_lines(slot.run_directory.output, _LAST_WORDS)
        if (words := last_words_of_memory(output)) is not None:
            return _out_of_memory(words)
    return Ending(cause=Cause.ITSELF, sentence=sentence)


def _out_of_memory(words: str) -> Ending:
    return Ending(
        cause=Cause.GPU_OUT_OF_MEMORY,
        sentence=f"The training ran out of device memory ({_shortened(words)}).",
    )


def _shortened(words: str) -> str:
    shown = words.strip()
    return shown if len(shown) <= _LONGEST_QUOTE else f"{shown[:_LONGEST_QUOTE]}..."


def ended_before_stop(slot: Slot, state: State) -> bool:
    """Tell whether a run was over before its training was asked to end."""
    return state.is_final() and state.timestamp.timestamp() < (slot.stop_requested_at_s or 0.0)
