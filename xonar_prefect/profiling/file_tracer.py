"""A framework's profiler that writes a trace into files: TensorFlow's and JAX's.

There is one profiler in a process, and the user comes first: ours does not start where theirs
runs, and is thrown away when theirs starts.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import wrapt

from xonar_prefect.profiling.activity import StepTimes
from xonar_prefect.profiling.recording import Annotate, Mark

logger = logging.getLogger(__name__)


class FileTracer(ABC):
    """Traces a few steps and reads what was written; a subclass knows its framework."""

    @property
    @abstractmethod
    def source(self) -> str:
        """What measured the active time, as a profile names it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._directory: Path | None = None
        self._undo: list[tuple[Any, str, Any]] = []

    @abstractmethod
    def _is_there(self) -> bool:
        """Whether the training has imported the framework."""

    @abstractmethod
    def _begin(self, directory: Path) -> None:
        """Start the framework's profiler; raises whatever it raises where one runs already."""

    @abstractmethod
    def _finish(self, *, save: bool) -> None:
        """Stop the framework's profiler."""

    @abstractmethod
    def _mark(self, mark: Mark) -> AbstractContextManager[object]:
        """Open a mark in the trace."""

    @abstractmethod
    def _starters(self) -> Sequence[tuple[Any, str]]:
        """Return modules and names of the functions by which users start the profiler."""

    def start(self) -> Annotate | None:
        """Begin to trace; None where it cannot be done."""
        if not self._is_there():
            return None
        directory: Path | None = None
        try:
            directory = Path(tempfile.mkdtemp(prefix="xonar-trace-"))
            self._begin(directory)
        except Exception:
            logger.info("The steps are not traced: most likely another profiler is running.")
            logger.debug("The profiler did not start.", exc_info=True)
            _remove(directory)
            return None
        with self._lock:
            self._directory = directory
            for module, name in self._starters():
                self._give_way_to(module, name)
        return self._mark

    def stop(self) -> tuple[StepTimes, ...]:
        """End the trace and read it; empty where nothing can be read."""
        # Only now: programs that are watched and never traced need no protobuf.
        from xonar_prefect.profiling.xplane import TraceError, read_directory

        directory = self._end(save=True)
        if directory is None:
            return ()
        try:
            return read_directory(directory)
        except TraceError as error:
            logger.info("The trace was not read: %s.", error)
        except Exception:
            logger.warning("The trace could not be read.", exc_info=True)
        finally:
            _remove(directory)
        return ()

    def _end(self, *, save: bool) -> Path | None:
        with self._lock:
            directory, self._directory = self._directory, None
            if directory is None:
                return None
            while self._undo:
                setattr(*self._undo.pop())
            try:
                self._finish(save=save)
            except Exception:
                logger.warning("The trace could not be taken.", exc_info=True)
            if not save:
                _remove(directory)
        return directory

    def _give_way_to(self, module: Any, name: str) -> None:
        original = getattr(module, name, None)
        if original is None:
            return

        def give_way(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            self._end(save=False)
            return wrapped(*args, **kwargs)

        self._undo.append((module, name, original))
        setattr(module, name, wrapt.FunctionWrapper(original, give_way))


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
