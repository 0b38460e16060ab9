"""Functions that are measured, and look in every other respect like the ones they wrap.

Prefect reads source file, signature and kind of a task's or flow's function, so a transparent
proxy is needed and not a function of our own around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import wrapt

from xonar_prefect.tasks.surrounding import Surrounding

if TYPE_CHECKING:
    from xonar_prefect.tasks.profile_step import ProfileStep

    FunctionProxy = wrapt.FunctionWrapper[Any, Any]
else:
    FunctionProxy = wrapt.FunctionWrapper


class MeasuredTaskFunction(FunctionProxy):
    """A task's function whose runs are attempts at the training of a profile step.

    In another process, as some task runners use, it is the plain function again: steps there
    cannot be seen from here.
    """

    def __init__(self, fn: Callable[..., Any], surrounding: Surrounding) -> None:
        def run(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
            return surrounding.run(functools.partial(wrapped, *args, **kwargs))

        super().__init__(fn, run)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return _itself, (self.__wrapped__,)


class ProfiledFlowFunction(FunctionProxy):
    """A flow's function that is a training: each run has a profile step beside it.

    Args:
        fn: The flow's function.
        kind: Which kind of function it is.
        begin: Begins the profile step of a run; returns None where there is nothing to measure.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        kind: Surrounding,
        begin: Callable[[], ProfileStep | None],
    ) -> None:
        def run(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
            call = functools.partial(wrapped, *args, **kwargs)
            step = begin()
            if step is None:
                return call()
            return replace(kind, within=step.attempt, closing=step.close).run(call)

        super().__init__(fn, run)
        self._self_arguments = (kind, begin)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return type(self), (self.__wrapped__, *self._self_arguments)


def _itself(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn
