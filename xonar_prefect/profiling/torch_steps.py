"""Sees the steps of PyTorch trainings: an optimizer's step ends one and begins the next.

PyTorch is never imported from here: it may be there already, come while the training runs, or
never. Whatever calls an optimizer is seen without being touched: loops of one's own, Hugging Face
`Trainer`, Lightning.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from xonar_prefect.profiling.framework_watch import FrameworkWatch
from xonar_prefect.profiling.keras import in_fit
from xonar_prefect.profiling.leading import Interruptions, LeadingOptimizer
from xonar_prefect.profiling.marks import current_session, stepping_session
from xonar_prefect.profiling.session import Session

logger = logging.getLogger(__name__)

_OPTIMIZERS = "torch.optim.optimizer"
_LOADER = "torch.utils.data.dataloader"


class _Steps:
    """What is seen of the optimizers of this process, on whatever thread."""

    def __init__(self) -> None:
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)
        self._session: Session | None = None
        self._leading = LeadingOptimizer()
        self._interruptions = Interruptions()

    def _renew_lock(self) -> None:
        # One that another thread holds would stay so in a forked child.
        self._lock = threading.Lock()

    @property
    def seen(self) -> bool:
        """Whether there was one."""
        return self._session is not None

    def optimizer_stepped(self, optimizer: Any, _args: Any = None, _kwargs: Any = None) -> None:
        """Count a step, if it is one."""
        # Keras on PyTorch tells its own steps.
        if in_fit() or (session := stepping_session()) is None:
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


_steps = _Steps()
_training_mode = threading.local()


def steps_seen() -> bool:
    """Whether an optimizer of PyTorch has stepped in a measured training of this process."""
    return _steps.seen


def watching_torch() -> AbstractContextManager[None]:
    """Report the steps of PyTorch optimizers to the current session while the body runs."""
    return _watch.watching()


def _change(torch: Any) -> None:
    register = sys.modules[_OPTIMIZERS].register_optimizer_step_post_hook
    _watch.undo_with(register(_steps.optimizer_stepped).remove)
    _watch.replace(torch.nn.Module, "train", _around_train)
    for module in (torch, torch.serialization):
        _watch.replace(module, "save", _around_save)
    if (loader := sys.modules.get(_LOADER)) is not None:
        _watch.replace(loader._BaseDataLoaderIter, "__next__", _around_next)


_watch = FrameworkWatch("torch", _change, "Steps of PyTorch optimizers")


def _around_train(original: Any) -> Any:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002
        # It calls itself for every submodule: only the outermost call is looked at.
        if mode or getattr(_training_mode, "is_set", False):
            return original(self, mode)
        _training_mode.is_set = True
        try:
            _steps.interrupted(functools.partial(_trains, self))
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
        _steps.interrupted(lambda _leader: True)
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
