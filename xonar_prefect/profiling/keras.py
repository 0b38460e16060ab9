"""Sees the steps of Keras `fit`.

Keras is never imported from here: it may be there already, come while the training runs, or never.
It is watched at its list of callbacks and not by a callback of our own: one that is not known to be
safe for it makes Keras call all callbacks synchronously, which changes the very times measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import wrapt

from xonar_prefect.profiling.framework_watch import FrameworkWatch
from xonar_prefect.profiling.marks import current_session
from xonar_prefect.profiling.session import Session

_fit = threading.local()


def watching_keras() -> AbstractContextManager[None]:
    """Report the steps of Keras `fit` to the current session while the body runs."""
    return _watch.watching()


def _change(keras: Any) -> None:
    trainer = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
    _watch.replace(trainer, "fit", _wrapped_by(_around_fit))
    for name, hook in _HOOKS.items():
        _watch.replace(keras.callbacks.CallbackList, name, _wrapped_by(hook))


def _wrapped_by(hook: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda original: wrapt.FunctionWrapper(original, hook)


_watch = FrameworkWatch("keras", _change, "Steps of Keras fit")


def in_fit() -> bool:
    """Whether this thread is within Keras `fit`, which tells the steps itself."""
    return getattr(_fit, "depth", 0) > 0


def _session() -> Session | None:
    """Return the session, for the outermost `fit` only: one inside a step is a part of it."""
    return current_session() if getattr(_fit, "depth", 0) <= 1 else None


def _around_fit(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
    _fit.depth = getattr(_fit, "depth", 0) + 1
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        if (session := _session()) is not None:
            session.drop_step()
        raise
    finally:
        _fit.depth -= 1


def _on_train_begin(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    if _session() is not None:
        instance.xonar_is_told = False
    return wrapped(*args, **kwargs)


def _on_epoch_begin(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    session = _session()
    if session is not None and not getattr(instance, "xonar_is_told", True):
        # Only its first epoch tells where a fit begins: not always with epoch 0.
        instance.xonar_is_told = True
        epoch = args[0] if args else kwargs.get("epoch", 0)
        session.expect(_steps_to_come(instance.params or {}, epoch))
    return wrapped(*args, **kwargs)


def _steps_to_come(params: dict[str, Any], epoch: int) -> int | None:
    per_epoch, epochs = params.get("steps"), params.get("epochs")
    # Both may be tensors or missing; a data set of unknown size has no number of steps.
    if not isinstance(per_epoch, int) or not isinstance(epochs, int):
        return None
    return per_epoch * max(0, epochs - epoch)


def _on_train_batch_begin(
    wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
) -> Any:
    if (session := _session()) is not None:
        instance.xonar_first_batch = args[0] if args else 0
        session.begin_step()
    return wrapped(*args, **kwargs)


def _on_train_batch_end(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if (session := _session()) is not None:
        # With steps_per_execution several steps end at once.
        first = getattr(instance, "xonar_first_batch", 0)
        last = args[0] if args else first
        session.end_step(max(1, int(last) - int(first) + 1))
    return result


def _before_gap(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
    if (session := _session()) is not None:
        session.pause()
    return wrapped(*args, **kwargs)


_HOOKS: dict[str, Callable[..., Any]] = {
    "on_train_begin": _on_train_begin,
    "on_epoch_begin": _on_epoch_begin,
    "on_train_batch_begin": _on_train_batch_begin,
    "on_train_batch_end": _on_train_batch_end,
    "on_epoch_end": _before_gap,
    "on_test_begin": _before_gap,
    "on_predict_begin": _before_gap,
    "on_train_end": _before_gap,
}
