"""What every Python interpreter below `xonar profile` imports at its start.

Nothing here may print, fail or stay in the way: it is somebody else's program.
"""

import os
import sys


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
    directory = os.environ.get("XONAR_PROFILE_REPORTS")
    if not directory:
        return
    try:
        from xonar_prefect.profiling.watching import watch_this_process

        watch_this_process(directory)
    except Exception:  # noqa: BLE001, S110
        # For example in an environment that this package is not installed in.
        pass


try:
    _import_the_one_we_hide()
finally:
    _watch()
