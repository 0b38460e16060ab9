"""`@xonar_task`: `@task` with a profiling task run beside the training."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, cast, overload

from prefect import Flow, Task
from prefect.utilities.visualization import get_task_viz_tracker

from xonar_prefect.errors import FlowOverTaskError, SettingsError, UnknownParameterError
from xonar_prefect.measured_function import MeasuredTaskFunction, ProfiledFlowFunction
from xonar_prefect.profile_step import ProfileStep
from xonar_prefect.profiling.window import Window
from xonar_prefect.surrounding import surrounded
from xonar_prefect.training_identity import identify

P = ParamSpec("P")
R = TypeVar("R")


class XonarTask(Task[P, R]):
    """A task that trains: where it runs in a flow, a profiling task run stands beside it.

    It does all that a `Task` does. Its profile is kept under a key made of the flow, the task and
    the flow run's parameters (`profile_by` names those that shape the work). One training at a
    time is measured in a process: of trainings that run at once (`map`, `submit`), the first one
    is, and the others run unmeasured.
    """

    profile_by: tuple[str, ...] | None = None
    window: Window = Window()

    def with_options(
        self,
        *,
        profile_by: Iterable[str] | None = None,
        window: Window | None = None,
        **task_options: Any,
    ) -> XonarTask[P, R]:
        """Return a copy with other options: those of `Task.with_options` and our own."""
        plain = super().with_options(**task_options)
        changed: XonarTask[P, R] = object.__new__(type(self))
        changed.__dict__.update(plain.__dict__)
        changed.profile_by = self.profile_by if profile_by is None else tuple(profile_by)
        changed.window = window or self.window
        return changed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the training here, with its profiling task run beside it."""
        step = self._begin()
        if step is None:
            return super().__call__(*args, **kwargs)
        run = functools.partial(Task.__call__, self._measured_by(step), *args, **kwargs)
        return surrounded(
            run, isasync=self.isasync, isgenerator=self.isgenerator, closing=step.close
        )

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit the training to the flow's task runner; its profiling task run is not."""
        step = self._begin()
        if step is None:
            return super().submit(*args, **kwargs)
        try:
            submitted = Task.submit(self._measured_by(step), *args, **kwargs)
        except BaseException:
            step.close()
            raise
        _close_after([submitted], step)
        return submitted

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """Map the training over inputs: the first to run is measured."""
        step = None if kwargs.get("deferred") else self._begin()
        if step is None:
            return super().map(*args, **kwargs)
        try:
            submitted = Task.map(self._measured_by(step), *args, **kwargs)
        except BaseException:
            step.close()
            raise
        _close_after(list(submitted), step)
        return submitted

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's signature; refused to `@flow`, which cannot wrap a task."""
        frame = sys._getframe()  # noqa: SLF001
        while (frame := frame.f_back) is not None:  # type: ignore[assignment]
            if frame.f_code is Flow.__init__.__code__ and frame.f_locals.get("fn") is self:
                raise FlowOverTaskError(self.name)
        return inspect.signature(self.fn)

    def _begin(self) -> ProfileStep | None:
        return _begin_profile_step(self.name, self.profile_by, self.window)

    def _measured_by(self, step: ProfileStep) -> XonarTask[P, R]:
        measured = copy.copy(self)
        measured.fn = cast(
            "Callable[P, R]",
            MeasuredTaskFunction(self.fn, step, isasync=self.isasync, isgenerator=self.isgenerator),
        )
        return measured


def _begin_profile_step(
    name: str, profile_by: tuple[str, ...] | None, window: Window
) -> ProfileStep | None:
    if get_task_viz_tracker() is not None:
        return None
    identity = identify(name, profile_by)
    return None if identity is None else ProfileStep(identity, window)


def _close_after(submitted: list[Any], step: ProfileStep) -> None:
    """Close the step when the last of these futures is done; states are done already."""
    waiting = [future for future in submitted if hasattr(future, "add_done_callback")]
    if not waiting:
        step.close()
        return
    left = iter(range(len(waiting) - 1, -1, -1))

    def one_is_done(_future: Any) -> None:
        if next(left) == 0:
            step.close()

    for future in waiting:
        future.add_done_callback(one_is_done)


@overload
def xonar_task(
    fn: Flow[P, R],
    *,
    profile_by: Iterable[str] | None = ...,
    window: Window = ...,
) -> Flow[P, R]: ...


@overload
def xonar_task(
    fn: Callable[P, R],
    *,
    profile_by: Iterable[str] | None = ...,
    window: Window = ...,
    **task_options: Any,
) -> XonarTask[P, R]: ...


@overload
def xonar_task(
    fn: None = ...,
    *,
    profile_by: Iterable[str] | None = ...,
    window: Window = ...,
    **task_options: Any,
) -> Callable[[Callable[P, R]], XonarTask[P, R]]: ...


def xonar_task(
    fn: Any = None,
    *,
    profile_by: Iterable[str] | None = None,
    window: Window = Window(),
    **task_options: Any,
) -> Any:
    """Make a training of a function, or of a flow: `@task` that also measures.

    Over a function it returns a `XonarTask` and takes all options of `prefect.task`. Over a `Flow`
    it returns a flow of the same class, name, parameters, hooks and entry point, whose runs are
    measured as a whole.

    Args:
        fn: The function or flow.
        profile_by: Parameters of the *flow run* that shape the work, as dotted paths; trainings
            that agree in them share a profile. By default all parameters count.
        window: When measuring starts to count and stops.
        **task_options: Options of `prefect.task`; a flow takes none.

    Raises:
        UnknownParameterError: `profile_by` names a parameter that the flow does not have. Over a
            function this is known, and raised, when the training is started in a flow.
        SettingsError: Task options were given for a flow.

    Example:
        ```python
        @flow
        def nightly(size: int = 64):
            train(size)

        @xonar_task(profile_by=["size"], retries=1)
        def train(size): ...
        ```
    """
    shaping = None if profile_by is None else tuple(profile_by)
    if fn is None:
        return functools.partial(xonar_task, profile_by=shaping, window=window, **task_options)
    if isinstance(fn, Flow):
        if task_options:
            raise SettingsError(
                f"@xonar_task over the flow {fn.name!r} was given {', '.join(task_options)}; "
                "give options of the flow to @flow."
            )
        return _profiled_flow(fn, shaping, window)
    task: XonarTask[Any, Any] = XonarTask(fn=fn, **task_options)
    task.profile_by = shaping
    task.window = window
    return task


def _profiled_flow(
    flow: Flow[P, R], profile_by: tuple[str, ...] | None, window: Window
) -> Flow[P, R]:
    properties = flow.parameters.properties
    for path in profile_by or ():
        if path.partition(".")[0] not in properties:
            raise UnknownParameterError(path, flow.name, properties)
    profiled = copy.copy(flow)
    begin = functools.partial(_begin_profile_step, flow.name, profile_by, window)
    profiled.fn = ProfiledFlowFunction(flow.fn, begin, flow.isasync, flow.isgenerator)
    return profiled
