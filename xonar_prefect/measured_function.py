"""Functions that are measured, and look in every other respect like the ones they wrap.

Prefect reads source file, signature and kind of a task's or flow's function, so a transparent
proxy is needed and not a function of our own around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wrapt

from xonar_prefect.surrounding import surrounded

if TYPE_CHECKING:
    from xonar_prefect.profile_step import ProfileStep


class MeasuredTaskFunction(wrapt.FunctionWrapper):  # type: ignore[misc]
    """A task's function whose runs are attempts at the training of a profile step.

    In another process, as task runners may use, it is the plain function again: steps there
    cannot be seen from here.
    """

    def __init__(
        self, fn: Callable[..., Any], step: ProfileStep, *, isasync: bool, isgenerator: bool
    ) -> None:
        def run(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
            return surrounded(
                functools.partial(wrapped, *args, **kwargs),
                isasync=isasync,
                isgenerator=isgenerator,
                within=step.attempt,
            )

        super().__init__(fn, run)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return _itself, (self.__wrapped__,)


class ProfiledFlowFunction(wrapt.FunctionWrapper):  # type: ignore[misc]
    """A flow's function that is a training: each run has a profile step beside it.

    Args:
        fn: The flow's function.
        begin: Begins the profile step of a run; returns None where there is nothing to measure.
        isasync: Whether it is one of the async kinds.
        isgenerator: Whether it is one of the generators.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        begin: Callable[[], ProfileStep | None],
        isasync: bool,  # noqa: FBT001
        isgenerator: bool,  # noqa: FBT001
    ) -> None:
        def run(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
            call = functools.partial(wrapped, *args, **kwargs)
            step = begin()
            if step is None:
                return call()
            return surrounded(
                call,
                isasync=isasync,
                isgenerator=isgenerator,
                within=step.attempt,
                closing=step.close,
            )

        super().__init__(fn, run)
        self._self_arguments = (begin, isasync, isgenerator)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return type(self), (self.__wrapped__, *self._self_arguments)


def _itself(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn
