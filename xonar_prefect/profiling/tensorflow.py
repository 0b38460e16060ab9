"""Everything that needs TensorFlow or Keras: steps of `fit`, traces, the memory cap.

Neither is ever imported from here: what the training has not imported is not there to be measured.
Keras is watched at its list of callbacks and not by a callback of our own: an additional callback
would make Keras leave its asynchronous mode and change the very times that are to be measured.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import wrapt

from xonar_prefect.profiling.marks import current_session
from xonar_prefect.profiling.session import Annotate
from xonar_prefect.profiling.xplane import STEP_NAME, StepTimes, TraceError, read_directory

logger = logging.getLogger(__name__)

_KERAS = "keras"
_CALLBACK_LIST = "CallbackList"
# Of the allocator's peak to that of the device: the CUDA context and library workspaces are not
# in it (measured; see `peak_memory_mib`).
_ALLOCATOR_RATIO = 1.15
_CONTEXT_MIB = 600
_MIB = 1024 * 1024

_patch_lock = threading.Lock()
_watchers = 0
_originals: dict[tuple[Any, str], Any] = {}
_fit_depth = threading.local()


def version() -> str | None:
    """Return name and version of the framework, if the training has imported it."""
    tensorflow = sys.modules.get("tensorflow")
    number = getattr(tensorflow, "__version__", None)
    return None if number is None else f"tensorflow {number}"


@contextlib.contextmanager
def watching_keras() -> Iterator[None]:
    """Report the steps of Keras `fit` to the current session while the body runs.

    Keras may be imported before, in or after it; it is left as it was found.
    """
    global _watchers  # noqa: PLW0603
    with _patch_lock:
        _watchers += 1
        _patch_keras_if_watched()
    _register_import_hook()
    try:
        yield
    finally:
        with _patch_lock:
            _watchers -= 1
            if _watchers == 0:
                _restore_keras()


_hook_registered = False


def _register_import_hook() -> None:
    global _hook_registered  # noqa: PLW0603
    with _patch_lock:
        if _hook_registered or _KERAS in sys.modules:
            return
        _hook_registered = True

    def on_import(_module: Any) -> None:
        with _patch_lock:
            _patch_keras_if_watched()

    wrapt.register_post_import_hook(on_import, _KERAS)


def _patch_keras_if_watched() -> None:
    keras = sys.modules.get(_KERAS)
    if keras is None or _watchers == 0 or _originals:
        return
    try:
        callback_list = keras.callbacks.CallbackList
        model = keras.Model
        trainer = next(kind for kind in model.__mro__ if "fit" in vars(kind))
        _patch(trainer, "fit", _around_fit)
        for name, hook in _HOOKS.items():
            _patch(callback_list, name, hook)
    except Exception:
        # It may be half imported, or look different from what is known.
        logger.warning("Steps of Keras fit cannot be watched.", exc_info=True)
        _restore_keras()


def _patch(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = vars(owner)[name]
    setattr(owner, name, wrapt.FunctionWrapper(original, wrapper))
    _originals[owner, name] = original


def _restore_keras() -> None:
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()


def _is_outermost() -> bool:
    return getattr(_fit_depth, "value", 0) <= 1


def _around_fit(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
    _fit_depth.value = getattr(_fit_depth, "value", 0) + 1
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        session = current_session()
        if session is not None and _is_outermost():
            session.drop_step()
        raise
    finally:
        _fit_depth.value -= 1


def _on_epoch_begin(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    session = current_session()
    if session is not None and _is_outermost() and not getattr(instance, "_xonar_told", False):
        # The first epoch of this fit: not always epoch 0.
        instance._xonar_told = True  # noqa: SLF001
        params = instance.params or {}
        first = args[0] if args else kwargs.get("epoch", 0)
        per_epoch = params.get("steps")
        session.expect(per_epoch and per_epoch * max(0, params.get("epochs", 0) - first))
    return wrapped(*args, **kwargs)


def _on_train_batch_begin(
    wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
) -> Any:
    session = current_session()
    if session is not None and _is_outermost():
        instance._xonar_batch = args[0] if args else 0  # noqa: SLF001
        session.begin_step()
    return wrapped(*args, **kwargs)


def _on_train_batch_end(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    session = current_session()
    if session is not None and _is_outermost():
        # With steps_per_execution several steps end at once.
        first = getattr(instance, "_xonar_batch", 0)
        last = args[0] if args else first
        session.end_step(max(1, last - first + 1))
    return result


def _before_gap(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
    session = current_session()
    if session is not None and _is_outermost():
        session.pause()
    return wrapped(*args, **kwargs)


_HOOKS: dict[str, Callable[..., Any]] = {
    "on_epoch_begin": _on_epoch_begin,
    "on_train_batch_begin": _on_train_batch_begin,
    "on_train_batch_end": _on_train_batch_end,
    "on_epoch_end": _before_gap,
    "on_test_begin": _before_gap,
    "on_predict_begin": _before_gap,
    "on_train_end": _before_gap,
}


@contextlib.contextmanager
def limited_memory(limit_mib: int) -> Iterator[None]:
    """Cap what TensorFlow's allocator takes on each GPU, if it starts while the body runs.

    The cap must be set after the import and before the first use of a GPU, and it cannot be taken
    back; what fails is logged.
    """
    _MemoryLimit.mib = limit_mib
    if "tensorflow" in sys.modules:
        _limit_memory(sys.modules["tensorflow"])
    else:
        wrapt.register_post_import_hook(_limit_memory, "tensorflow")
    try:
        yield
    finally:
        _MemoryLimit.mib = None


class _MemoryLimit:
    mib: int | None = None


def _limit_memory(tensorflow: Any) -> None:
    if _MemoryLimit.mib is None:
        return
    try:
        config = tensorflow.config
        for gpu in config.list_physical_devices("GPU"):
            limit = config.LogicalDeviceConfiguration(memory_limit=_MemoryLimit.mib)
            config.set_logical_device_configuration(gpu, [limit])
        # Trainings often ask for growth; TensorFlow refuses that on a capped device with an error
        # that would end them, and the cap makes it unnecessary.
        _tolerate_growth(config.experimental)
    except Exception as error:
        logger.warning("TensorFlow's memory was not capped: %s", error)


def _tolerate_growth(experimental: Any) -> None:
    def tolerant(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            return wrapped(*args, **kwargs)
        except ValueError as error:
            logger.info("The memory cap of this run stands instead of memory growth: %s", error)
            return None

    if not isinstance(experimental.set_memory_growth, wrapt.FunctionWrapper):
        experimental.set_memory_growth = wrapt.FunctionWrapper(
            experimental.set_memory_growth, tolerant
        )


class Tracer:
    """TensorFlow's own profiler, for a few steps; it steps back where somebody else uses it."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def start(self) -> Annotate | None:
        """Begin to trace; None where it cannot be done."""
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None:
            return None
        directory = Path(tempfile.mkdtemp(prefix="xonar-trace-"))
        try:
            experimental = tensorflow.profiler.experimental
            experimental.start(str(directory))
        except Exception as error:
            # Most often: the user's own profiler is running.
            logger.info("The steps are not traced: %s", error)
            shutil.rmtree(directory, ignore_errors=True)
            return None
        self._directory = directory
        return lambda number: experimental.Trace(STEP_NAME, step_num=number, _r=1)

    def stop(self) -> tuple[StepTimes, ...]:
        """End the trace and read it; empty where nothing can be read."""
        directory, self._directory = self._directory, None
        if directory is None:
            return ()
        try:
            sys.modules["tensorflow"].profiler.experimental.stop()
            return read_directory(directory)
        except TraceError as error:
            logger.info("The trace was not read: %s", error)
        except Exception:
            logger.warning("The trace could not be taken.", exc_info=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return ()


def peak_memory_mib() -> int | None:
    """Return the peak on the GPU as the allocator tells it, brought to that of the device.

    None where it is unknown; TensorFlow says zero for that.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return None
    try:
        peak = tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]
    except Exception as error:
        logger.debug("The allocator tells no peak: %s", error)
        return None
    return round(peak / _MIB * _ALLOCATOR_RATIO + _CONTEXT_MIB) if peak > 0 else None
