"""Marking steps: `step()` and `steps(...)` for any loop, and the session they go to.

One training at a time is measured in a process. Steps are routed by context, so those of another
training that runs in another thread at the same time are not mistaken for its steps; a thread that
was started without a context counts as the measured training's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar

from xonar_prefect.profiling.session import Session

T = TypeVar("T")

_lock = threading.Lock()
_active: Session | None = None
_begin_in_child: Callable[[], object] | None = None
_at_first_step: Callable[[], object] | None = None
_of_context: ContextVar[Session | None] = ContextVar("xonar_session", default=None)


def current_session() -> Session | None:
    """Return the session that steps of this context belong to, if there is one."""
    active = _active
    if active is None:
        return None
    mine = _of_context.get()
    return active if mine is None or mine is active else None


def is_measured() -> bool:
    """Whether this context already belongs to a training that is measured."""
    return _active is not None and _of_context.get() is _active


def measure_forked(begin: Callable[[], object] | None) -> None:
    """Have forked children of this process measured, from the first step that one of them takes.

    Most children never take one: they load data. `begin` is called in the child and activates a
    session there; None leaves children unmeasured.
    """
    global _begin_in_child  # noqa: PLW0603
    _begin_in_child = begin


def stepping_session() -> Session | None:
    """Return the session of this context, as a step begins: a forked child gets its own by that."""
    if _at_first_step is not None:
        _begin_in_this_child(_at_first_step)
    return current_session()


def _begin_in_this_child(begin: Callable[[], object]) -> None:
    global _at_first_step  # noqa: PLW0603
    _at_first_step = None
    with contextlib.suppress(Exception):  # a profile is not worth a training
        begin()


def _forked() -> None:
    """Let the steps of this child be its own: of its parent's threads, which measure, it has none.

    A lock that one of them held would never be released here.
    """
    global _active, _at_first_step, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _active is not None:
        _active.detach()  # a loop over steps may go on here
    _active = None
    _of_context.set(None)
    _at_first_step = _begin_in_child


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def activated(session: Session) -> Iterator[bool]:
    """Make this the session of the process while the body runs, if there is none yet.

    Yields whether it is; where another training has the turn, the steps of the body are nobody's.
    """
    global _active  # noqa: PLW0603
    with _lock:
        has_turn = _active is None
        if has_turn:
            _active = session
    token = _of_context.set(session)
    try:
        yield has_turn
    finally:
        # A generator may be finished in another context than the one it began in.
        with contextlib.suppress(ValueError):
            _of_context.reset(token)
        if has_turn:
            with _lock:
                _active = None
            session.finish()


class step:  # noqa: N801
    """Mark the body of a `with` statement as one step of the training.

    The time until the next step counts as this one's wait for input, so mark every step, and
    prefer `steps(...)`, which also knows where an epoch ends. Outside a measured training it does
    nothing. A step that raises does not count.

    Example:
        ```python
        for batch in batches:
            with xonar_prefect.step():
                train_on(batch)
        ```
    """

    __slots__ = ("_session",)

    def __enter__(self) -> None:
        self._session = stepping_session()
        if self._session is not None:
            self._session.begin_step(explicit=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        if session is None:
            return
        if kind is None:
            session.end_step(explicit=True)
        else:
            session.drop_step(explicit=True)


def steps(iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield the items; the work on each is one step, and the loop is one epoch.

    Waiting for the next item belongs to the step; what happens after the loop (validation, a
    checkpoint) does not. Outside a measured training it only iterates.

    Args:
        iterable: For example the batches of an epoch.
        total: Steps of the whole training, all epochs together, from which the remaining time
            is told; None leaves it unknown.

    Example:
        ```python
        for epoch in range(epochs):
            for batch in xonar_prefect.steps(batches, total=epochs * len(batches)):
                train_on(batch)
        ```
    """
    session = stepping_session()
    if session is None:
        yield from iterable
        return
    if total is not None:
        session.expect_total(total)
    try:
        for item in iterable:
            session.begin_step(explicit=True)
            try:
                yield item
            except BaseException:
                # The loop was left in the middle of a step: by `break` after its work, or by an
                # error; neither is known to be a whole step.
                session.drop_step(explicit=True)
                raise
            session.end_step(explicit=True)
    finally:
        session.pause()
