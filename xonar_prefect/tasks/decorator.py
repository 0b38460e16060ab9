"""`XonarTask` and its decorator."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from prefect import Flow, Task

from xonar_prefect.errors import FlowOverTaskError, SettingsError, UnknownParameterError
from xonar_prefect.profiling.window import Window
from xonar_prefect.tasks.functions import MeasuredTaskFunction, ProfiledFlowFunction
from xonar_prefect.tasks.profile_step import ProfileStep, begin_profile_step
from xonar_prefect.tasks.surrounding import Surrounding

P = ParamSpec("P")
R = TypeVar("R")

_DEFAULT_WINDOW = Window()


class XonarTask(Task[P, R]):
    """A task that trains: where it runs in a flow, a profiling task run stands beside it.

    It does all that a `Task` does. Its profile is kept under a key made of the flow, the task and
    the flow run's parameters (`profile_by` names those that shape the work). One training at a
    time is measured in a process: of trainings that run at once (`map`, `submit`), the first one
    is, and the others run unmeasured. Within a flow that is a training itself it is a plain task.
    """

    profile_by: tuple[str, ...] | None = None
    window: Window = _DEFAULT_WINDOW

    def with_options(
        self,
        *,
        profile_by: str | Iterable[str] | None = None,
        window: Window | None = None,
        **task_options: Any,
    ) -> XonarTask[P, R]:
        """Return a copy with other options: those of `Task.with_options` and our own."""
        changed = _as_training(super().with_options(**task_options), type(self))
        changed.profile_by = self.profile_by if profile_by is None else _paths(profile_by)
        changed.window = window or self.window
        return changed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the training here, with its profiling task run beside it."""
        step = self._begin()
        if step is None:
            return super().__call__(*args, **kwargs)
        call = functools.partial(Task.__call__, self._measured_by(step), *args, **kwargs)
        return self._kind(closing=step.close).run(call)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit the training to the flow's task runner; its profiling task run is not."""
        step = self._begin()
        if step is None:
            return super().submit(*args, **kwargs)
        return _submitted(
            step, functools.partial(Task.submit, self._measured_by(step)), args, kwargs
        )

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """Map the training over inputs: the first to run is measured."""
        step = None if kwargs.get("deferred") else self._begin()
        if step is None:
            return super().map(*args, **kwargs)
        return _submitted(step, functools.partial(Task.map, self._measured_by(step)), args, kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's signature; refused to `@flow`, which cannot wrap a task.

        It is the first thing `Flow` asks of what it wraps, and so the place to say what is wrong.
        """
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code is Flow.__init__.__code__ and frame.f_locals.get("fn") is self:
                raise FlowOverTaskError(self.name)
            frame = frame.f_back
        return inspect.signature(self.fn)

    def _begin(self) -> ProfileStep | None:
        return begin_profile_step(self.name, self.profile_by, self.window)

    def _kind(self, **around: Any) -> Surrounding:
        return Surrounding(isasync=self.isasync, isgenerator=self.isgenerator, **around)

    def _measured_by(self, step: ProfileStep) -> XonarTask[P, R]:
        measured = copy.copy(self)
        measured.fn = MeasuredTaskFunction(self.fn, self._kind(within=step.attempt))
        return measured


def _as_training(task: Task[P, R], kind: type[XonarTask[P, R]]) -> XonarTask[P, R]:
    training = object.__new__(kind)
    training.__dict__.update(task.__dict__)
    return training


def _submitted(
    step: ProfileStep, submit: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Submit, and close the step when all that was submitted is done."""
    try:
        result = submit(*args, **kwargs)
    except BaseException:
        step.close(urgent=True)
        raise
    # With return_state there are states instead of futures, and they are final already.
    futures = result if isinstance(result, list) else [result]
    waiting = [future for future in futures if hasattr(future, "add_done_callback")]
    if not waiting:
        step.close()
        return result
    left = iter(range(len(waiting) - 1, -1, -1))

    def one_is_done(_future: Any) -> None:
        if next(left) == 0:
            step.close()

    for future in waiting:
        future.add_done_callback(one_is_done)
    return result


def _paths(profile_by: str | Iterable[str]) -> tuple[str, ...]:
    return (profile_by,) if isinstance(profile_by, str) else tuple(profile_by)


@overload
def xonar_task(  # type: ignore[overload-overlap]  # a flow is callable too; the first one wins
    fn: Flow[P, R],
    *,
    profile_by: str | Iterable[str] | None = ...,
    window: Window = ...,
) -> Flow[P, R]: ...


@overload
def xonar_task(
    fn: Callable[P, R],
    *,
    profile_by: str | Iterable[str] | None = ...,
    window: Window = ...,
    **task_options: Any,
) -> XonarTask[P, R]: ...


@overload
def xonar_task(
    fn: None = ...,
    *,
    profile_by: str | Iterable[str] | None = ...,
    window: Window = ...,
    **task_options: Any,
) -> Callable[[Callable[P, R]], XonarTask[P, R]]: ...


def xonar_task(
    fn: Any = None,
    *,
    profile_by: str | Iterable[str] | None = None,
    window: Window = _DEFAULT_WINDOW,
    **task_options: Any,
) -> Any:
    """Make a training of a function, or of a flow: `@task` that also measures.

    Over a function it returns a `XonarTask` and takes all options of `prefect.task`. Over a `Flow`
    it returns a flow of the same class, name, parameters, hooks and entry point, whose runs are
    measured as a whole.

    Args:
        fn: The function, task or flow.
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
    shaping = None if profile_by is None else _paths(profile_by)
    if fn is None:
        return functools.partial(xonar_task, profile_by=shaping, window=window, **task_options)
    if isinstance(fn, Flow):
        if task_options:
            raise SettingsError(
                f"@xonar_task over the flow {fn.name!r} was given {', '.join(task_options)}; "
                "give options of the flow to @flow."
            )
        return _profiled_flow(fn, shaping, window)
    plain = fn.with_options(**task_options) if isinstance(fn, Task) else Task(fn, **task_options)
    training = _as_training(plain, XonarTask)
    training.profile_by = shaping
    training.window = window
    return training


def _profiled_flow(
    flow: Flow[P, R], profile_by: tuple[str, ...] | None, window: Window
) -> Flow[P, R]:
    properties = flow.parameters.properties
    for path in profile_by or ():
        if path.partition(".")[0] not in properties:
            raise UnknownParameterError(path, flow.name, properties)
    profiled = copy.copy(flow)
    profiled.fn = ProfiledFlowFunction(
        flow.fn,
        Surrounding(isasync=flow.isasync, isgenerator=flow.isgenerator),
        functools.partial(begin_profile_step, flow.name, profile_by, window),
    )
    return profiled
