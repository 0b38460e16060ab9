"""Changes a framework for a while that is never imported from here.

It may be there already, come while somebody watches, or never; afterwards it is as it was found.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import wrapt

logger = logging.getLogger(__name__)

Undo: TypeAlias = Callable[[], object]


class FrameworkWatch:
    """Makes changes to a framework as long as anybody watches; of several at once, the first does.

    Args:
        module: Name of its module.
        change: Makes the changes to the module, each through `replace` or `undo_with`. What it
            raises is said, and all is taken back: another version may look different from those
            that are known.
        what: What cannot be seen then, for the log.
    """

    def __init__(self, module: str, change: Callable[[Any], None], what: str) -> None:
        self._module = module
        self._change = change
        self._what = what
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)
        self._watchers = 0
        self._undo: list[Undo] = []
        self._awaits_import = False

    def _renew_lock(self) -> None:
        # One that another thread holds would stay so in a forked child.
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Have the framework changed while the body runs, from its import on."""
        with self._lock:
            self._watchers += 1
            if self._awaits_import:
                self._change_once()
            else:
                self._awaits_import = True
                # Called at once where it is imported already.
                wrapt.register_post_import_hook(self._on_import, self._module)
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1
                if self._watchers == 0:
                    self._restore()

    def replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put what `around` makes of an attribute in its place."""
        original = vars(owner)[name]
        setattr(owner, name, around(original))
        self.undo_with(functools.partial(setattr, owner, name, original))

    def undo_with(self, undo: Undo) -> None:
        """Note what takes a change back."""
        self._undo.append(undo)

    def _on_import(self, _module: Any) -> None:
        with self._lock:
            self._change_once()

    def _change_once(self) -> None:
        framework = sys.modules.get(self._module)
        if framework is None or self._watchers == 0 or self._undo:
            return
        try:
            self._change(framework)
        except Exception:
            logger.warning("%s cannot be seen.", self._what, exc_info=True)
            self._restore()

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()
