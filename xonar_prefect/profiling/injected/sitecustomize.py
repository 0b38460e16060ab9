"""What every Python interpreter below `xonar profile` imports at its start.

Nothing here may print, fail or stay in the way: it is somebody else's program.
"""

import os
import sys

_TRAINS_WITH = frozenset({"jax", "keras", "tensorflow", "torch", "xonar_prefect"})


def _import_the_one_we_hide() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _watch() -> None:
    try:
        from xonar_prefect.profiling.watching import watch_this_process

        watch_this_process(os.environ["XONAR_PROFILE_REPORTS"])
    except Exception:  # noqa: BLE001, S110
        # For example in an environment that this package is not installed in.
        pass


class _AtFirstUse:
    """Has the process watched once it has imported something that it may train with.

    Most processes never do, and to load what watches takes a quarter of a second.
    """

    def __init__(self) -> None:
        self._is_over = False

    def find_spec(self, name: str, *_: object) -> object:
        """Find what is wanted as everybody else does, and learn when it was loaded."""
        if self._is_over or name not in _TRAINS_WITH:
            return None
        self._is_over = True  # we are asked as well
        try:
            import importlib.util

            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module  # type: ignore[union-attr]

            def load_and_watch(module: object) -> None:
                try:
                    load(module)  # type: ignore[arg-type]
                except BaseException:
                    self._is_over = False
                    raise
                _watch()

            spec.loader.exec_module = load_and_watch  # type: ignore[union-attr, method-assign]
        except Exception:  # noqa: BLE001
            # It is not there, or of a kind that we do not know: that is for others to find.
            self._is_over = False
            return None
        return spec


try:
    _import_the_one_we_hide()
finally:
    if os.environ.get("XONAR_PROFILE_REPORTS"):
        sys.meta_path.insert(0, _AtFirstUse())  # type: ignore[arg-type]
