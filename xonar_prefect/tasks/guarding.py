"""Keeps a flow run's state as it is where its worker will release it again.

A training that runs out of device memory, or that its worker ends, has not come to its end: the
worker puts it back into the queue as soon as its processes are gone. A final state in between,
however short, would let parents in `run_deployment` return and failure hooks and automations
fire. So the proposal of that state is intercepted, where every way to it meets: whether the error
left the flow as an exception, in a future, or out of a subflow, and only if the flow has not dealt
with it. Prefect then ends the process as it does for a suspended run, without a state of its own.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Pause

from xonar_prefect.core.out_of_memory import in_one_line, is_out_of_memory, out_of_memory_in
from xonar_prefect.run_directory import OutOfMemory, Placement, RunDirectory

logger = logging.getLogger(__name__)

_GUARDED = "_xonar_guarded"


class Guard:
    """Stands before the states of one flow run.

    Args:
        directory: Its run directory.
        placement: What its worker said.
    """

    def __init__(self, directory: RunDirectory, placement: Placement) -> None:
        self._directory = directory
        self._placement = placement
        self._seen: tuple[str, str | None] | None = None

    @contextmanager
    def watching(self, profile_key: str | None) -> Iterator[None]:
        """Note an out-of-memory error that leaves the body, which is a training's function."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                self._seen = in_one_line(error), profile_key
            raise

    def check(self, state: State[Any]) -> None:
        """Let a proposed state pass, or end the process without one.

        Raises:
            Pause: The worker will see to the run's state.
        """
        if state.is_failed() and self._placement.runs_again_out_of_memory:
            self._check_memory()
        elif state.is_crashed() and self._directory.read_stop() is not None:
            raise Pause("Its worker ends this training.")

    def _check_memory(self) -> None:
        # The proposal is made while the error that ended the flow is being handled; a flow that
        # returned a failed future has none.
        error = sys.exc_info()[1]
        ran_out = out_of_memory_in(error)
        if ran_out is not None:
            message, key = in_one_line(ran_out), self._seen[1] if self._seen else None
        elif error is None and self._seen is not None:
            message, key = self._seen
        else:
            return
        try:
            self._directory.write(OutOfMemory(message=message, profile_key=key))
        except OSError:
            logger.warning("The worker cannot be told of the missing memory.", exc_info=True)
            return  # it reads the final state instead
        logger.warning("Out of device memory; the worker releases this training again.")
        raise Pause("Out of device memory; the worker releases this training again.")


def guard_of(directory: RunDirectory | None) -> Guard | None:
    """Return the guard of the flow run of this process, set up at the first call.

    None outside a run that a worker launched, and where the outermost flow cannot be reached:
    then the run has a final state before the worker puts it back.
    """
    context = FlowRunContext.get()
    client = getattr(context, "client", None)
    if context is None or directory is None or client is None:
        return None
    guard: Guard | None = getattr(client, _GUARDED, None)
    if guard is not None:
        return guard
    placement = directory.read_placement()
    if placement is None:
        return None
    guard = Guard(directory, placement)
    _stand_before(client, placement.run_id, guard)
    return guard


def _stand_before(client: Any, run_id: str, guard: Guard) -> None:
    """Have one client ask the guard first; subflows of the same kind share it."""
    propose: Callable[..., Any] = client.set_flow_run_state

    @functools.wraps(propose)
    def set_flow_run_state(flow_run_id: Any, state: State[Any], *args: Any, **kwargs: Any) -> Any:
        if str(flow_run_id) == run_id:
            guard.check(state)
        return propose(flow_run_id, state, *args, **kwargs)

    client.set_flow_run_state = set_flow_run_state
    setattr(client, _GUARDED, guard)
