"""Sees the steps of PyTorch trainings: an optimizer's step ends one and begins the next.

PyTorch is never imported from here: it may be there already, come while the training runs, or
never. Whatever calls an optimizer is seen without being touched: loops of one's own, Hugging Face
`Trainer`, Lightning.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from xonar_prefect.profiling.keras import in_fit
from xonar_prefect.profiling.leading import Interruptions, LeadingOptimizer
from xonar_prefect.profiling.marks import current_session
from xonar_prefect.profiling.session import Session

logger = logging.getLogger(__name__)

_TORCH = "torch"
_OPTIMIZERS = "torch.optim.optimizer"
_LOADER = "torch.utils.data.dataloader"


class _Watch:
    """What is seen of the optimizers of this process, on whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._leading = LeadingOptimizer()
        self._interruptions = Interruptions()

    def optimizer_stepped(self, optimizer: Any, _args: Any = None, _kwargs: Any = None) -> None:
        """Count a step, if it is one."""
        # Keras on PyTorch tells its own steps.
        if (session := current_session()) is None or in_fit():
            return
        with self._lock:
            if session is not self._session:
                self._session = session
                self._leading, self._interruptions = LeadingOptimizer(), Interruptions()
            if self._leading.stepped(optimizer):
                self._interruptions.stepped()
                session.turn_step()

    def interrupted(self, concerns: Callable[[Any], bool]) -> None:
        """Drop the open step if what begins concerns the leading optimizer."""
        session = current_session()
        if session is None or session is not self._session or in_fit():
            return
        leader = self._leading.leader
        if leader is None or not concerns(leader):
            return
        with self._lock:
            if self._interruptions.interrupts():
                session.drop_step()


_lock = threading.RLock()
_watchers = 0
_undo: list[Callable[[], None]] = []
_watch = _Watch()
_training_mode = threading.local()


def steps_seen() -> bool:
    """Whether an optimizer of PyTorch has stepped in a measured training of this process."""
    return _watch._session is not None


@contextlib.contextmanager
def watching_torch() -> Iterator[None]:
    """Report the steps of PyTorch optimizers to the current session while the body runs.

    PyTorch may be imported before, in or after it; it is left as it was found.
    """
    global _watchers  # noqa: PLW0603
    _register_import_hook()
    with _lock:
        _watchers += 1
        _hook_if_watched()
    try:
        yield
    finally:
        with _lock:
            _watchers -= 1
            if _watchers == 0:
                _unhook()


@functools.cache
def _register_import_hook() -> None:
    def on_import(_module: Any) -> None:
        with _lock:
            _hook_if_watched()

    wrapt.register_post_import_hook(on_import, _TORCH)


def _hook_if_watched() -> None:
    torch = sys.modules.get(_TORCH)
    if torch is None or _watchers == 0 or _undo:
        return
    try:
        register = sys.modules[_OPTIMIZERS].register_optimizer_step_post_hook
        _undo.append(register(_watch.optimizer_stepped).remove)
        _replace(torch.nn.Module, "train", _around_train)
        for module in (torch, torch.serialization):
            _replace(module, "save", _around_save)
        if (loader := sys.modules.get(_LOADER)) is not None:
            _replace(loader._BaseDataLoaderIter, "__next__", _around_next)
    except Exception:
        # Another version may look different from those that are known.
        logger.warning("Steps of PyTorch optimizers cannot be seen.", exc_info=True)
        _unhook()


def _replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    original = vars(owner)[name]
    setattr(owner, name, around(original))
    _undo.append(functools.partial(setattr, owner, name, original))


def _unhook() -> None:
    while _undo:
        _undo.pop()()


def _around_train(original: Any) -> Any:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002
        # It calls itself for every submodule: only the outermost call is looked at.
        if mode or getattr(_training_mode, "is_set", False):
            return original(self, mode)
        _training_mode.is_set = True
        try:
            _watch.interrupted(functools.partial(_trains, self))
            return original(self, mode)
        finally:
            _training_mode.is_set = False

    return train


def _trains(module: Any, optimizer: Any) -> bool:
    """Whether an optimizer trains a module as a whole, by its first and its last parameter."""
    try:
        groups = optimizer.param_groups
        ends = {id(groups[0]["params"][0]), id(groups[-1]["params"][-1])}
        for parameter in module.parameters():
            ends.discard(id(parameter))
            if not ends:
                return True
    except Exception:  # both may be of any class of the user's
        logger.debug("Modules and optimizers cannot be compared.", exc_info=True)
    return False


def _around_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _watch.interrupted(lambda _leader: True)
        return original(*args, **kwargs)

    return save


def _around_next(original: Any) -> Any:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        session = current_session()
        if session is None:
            return original(self)
        with session.waiting():
            return original(self)

    return __next__
