"""PyTorch's profiler, for a few steps, from a thread beside the training.

There is one profiler in a process, and the user comes first: ours does not start where theirs
runs or is being prepared, and is thrown away when theirs begins.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import wrapt

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.host_marks import HostMarks
from xonar_prefect.profiling.kineto import Event, read_steps
from xonar_prefect.profiling.recording import Annotate

logger = logging.getLogger(__name__)

_TORCH = "torch"
_PROFILER = "torch.autograd.profiler"
# How long a user's profiler waits for ours to end, at most.
_GIVE_WAY_SECONDS = 10.0


class TorchTracer:
    """Records what the GPU executes; on the processor, what operations run on all threads.

    Steps are marked by the host's clock: a profiler that was started from another thread does not
    record what the training's thread marks in it.
    """

    source = "kineto"

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._marks = HostMarks()
        self._recording: _Recording | None = None

    def start(self) -> Annotate | None:
        """Begin to trace; None where it cannot be done."""
        self._marks = HostMarks()
        torch = sys.modules.get(_TORCH)
        if torch is None:
            return None
        options = _options(torch, on_gpu=self._on_gpu)
        if options is None:
            return None
        self._recording = _users_profilers.begin_ours(
            lambda: _Recording(lambda: torch.profiler._KinetoProfile(**options))
        )
        return None if self._recording is None else self._marks.mark

    def stop(self) -> tuple[StepTimes, ...]:
        """End the trace and return its steps; empty where nothing can be read."""
        recording, self._recording = self._recording, None
        if recording is None:
            return ()
        events = _users_profilers.end_ours(recording)
        if events is None:
            return ()
        return read_steps(self._marks.steps, self._marks.waits, events, on_gpu=self._on_gpu)


def _options(torch: Any, *, on_gpu: bool) -> dict[str, Any] | None:
    activity = torch.profiler.ProfilerActivity
    if on_gpu:
        return {"activities": [activity.CUDA]}
    config = torch._C._profiler._ExperimentalConfig
    # Newer versions can record the threads of the training; older ones only the one that starts.
    if "profile_all_threads" not in (config.__init__.__doc__ or ""):
        return None
    return {
        "activities": [activity.CPU],
        "experimental_config": config(profile_all_threads=True),
    }


class _Recording:
    """One recording, begun and ended by a thread of its own, as the profiler demands."""

    def __init__(self, profiler: Callable[[], Any]) -> None:
        self._profiler = profiler
        self._started = threading.Event()
        self._stop = threading.Event()
        self._events: list[Event] | None = None
        self.is_unwanted = False
        self._thread = threading.Thread(target=self._record, name="xonar-kineto", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def runs(self) -> bool:
        """Whether it began and has not ended."""
        return self._thread.is_alive()

    def end(self) -> list[Event] | None:
        """End it; None where nothing was recorded."""
        self._stop.set()
        self._thread.join(_GIVE_WAY_SECONDS)
        return None if self._thread.is_alive() else self._events

    def _record(self) -> None:
        try:
            profiler = self._profiler()
            profiler.start()
            self._started.set()
            self._stop.wait()
            profiler.stop()
            if not self.is_unwanted:
                self._events = _events(profiler.profiler.kineto_results.events())
        except Exception:
            logger.info("The steps are not traced: PyTorch's profiler cannot be used.")
            logger.debug("PyTorch's profiler failed.", exc_info=True)
        finally:
            self._started.set()


def _events(raw: Sequence[Any]) -> list[Event]:
    return [_event(each) for each in raw if not _is_label(each)]


def _event(raw: Any) -> Event:
    if hasattr(raw, "start_ns"):
        begin, duration = raw.start_ns(), raw.duration_ns()
    else:  # before PyTorch 2.4
        begin, duration = raw.start_us() * 1000, raw.duration_us() * 1000
    on_host = "CPU" in str(raw.device_type())
    return Event(raw.name(), begin, begin + duration, None if on_host else raw.device_index())


def _is_label(raw: Any) -> bool:
    """Whether an event on a GPU only surrounds others."""
    is_label = getattr(raw, "is_user_annotation", None)
    return bool(is_label is not None and is_label() and "CPU" not in str(raw.device_type()))


class _UsersProfilers:
    """Knows the profilers of the user and keeps ours out of their way.

    A user's profiler is prepared before it starts, and a foreign start in between would break it;
    so they are watched as long as PyTorch is.
    """

    def __init__(self) -> None:
        self._theirs: set[int] = set()
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # Of its parent's threads a child has none: neither one that records nor one to free a lock.
        self._lock = threading.RLock()
        self._ours: _Recording | None = None

    def begin_ours(self, begin: Callable[[], _Recording]) -> _Recording | None:
        """Begin our recording unless there is another one."""
        profiler = sys.modules.get(_PROFILER)
        with self._lock:
            if self._theirs or getattr(profiler, "_is_profiler_enabled", False):
                logger.info("The steps are not traced: another profiler is running.")
                return None
            _watch_profilers()
            recording = begin()
            if not recording.runs:
                return None
            self._ours = recording
            return recording

    def end_ours(self, recording: _Recording) -> list[Event] | None:
        """End our recording; None where it gave way or failed."""
        with self._lock:
            self._ours = None
        return None if recording.is_unwanted else recording.end()

    def prepares(self, profiler: object) -> None:
        """Note that a profiler is being prepared; if it is theirs, ours ends first."""
        if threading.current_thread().name == "xonar-kineto":
            return
        with self._lock:
            self._theirs.add(id(profiler))
            ours, self._ours = self._ours, None
        if ours is not None:
            ours.is_unwanted = True
            ours.end()

    def ended(self, profiler: object) -> None:
        """Note that a profiler has ended."""
        with self._lock:
            self._theirs.discard(id(profiler))


_users_profilers = _UsersProfilers()


@functools.cache
def watch_users_profilers() -> None:
    """Watch for profilers that the user starts, from when PyTorch is imported."""
    wrapt.when_imported(_PROFILER)(lambda _module: _watch_profilers())


@functools.cache
def _watch_profilers() -> None:
    profiler = sys.modules.get(_PROFILER)
    if profiler is None or not inspect.isclass(getattr(profiler, "profile", None)):
        return
    for name, note in (
        ("_prepare_trace", _users_profilers.prepares),
        ("__exit__", _users_profilers.ended),
    ):
        original = getattr(profiler.profile, name, None)
        if original is not None:
            setattr(profiler.profile, name, _noting(original, note))


def _noting(original: Any, note: Callable[[object], None]) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        return original(self, *args, **kwargs)

    return method
