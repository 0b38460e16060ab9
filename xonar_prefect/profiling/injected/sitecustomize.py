"""What every Python interpreter below `xonar profile` imports at its start.

Nothing here may print, fail or stay in the way: it is somebody else's program.
"""

import _thread
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


def _watch(directory: str) -> None:
    try:
        from xonar_prefect.profiling.watching import watch_this_process

        watch_this_process(directory)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        # For example in an environment that this package is not installed in.
        _say_why_not(directory, error)


def _say_why_not(directory: str, error: BaseException) -> None:
    try:
        note = os.path.join(directory, f"{os.getpid()}.unwatched")  # noqa: PTH118
        with open(note, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"{sys.executable}: {type(error).__name__}: {error}")
    except OSError:
        pass


class _AtFirstUse:
    """Has the process watched once it has imported something that it may train with.

    Most processes never do, and to load what watches takes a quarter of a second.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_over = False
        # Without the directory of the script, which is put before all others after this.
        self._path_at_start = list(sys.path)
        self._watching_thread: int | None = None
        self._found: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Find what is wanted as everybody else does, and learn when it was loaded."""
        if _thread.get_ident() == self._watching_thread:
            return self._find_what_watches(name, path, target)
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
                self._watch()

            # An error of the import is shown without the machinery of imports, and so without this.
            load_and_watch.__code__ = load_and_watch.__code__.replace(
                co_filename="<frozen importlib._bootstrap>",
                co_name="_call_with_frames_removed",
            )
            spec.loader.exec_module = load_and_watch  # type: ignore[union-attr, method-assign]
        except Exception:  # noqa: BLE001
            # It is not there, or of a kind that we do not know: that is for others to find.
            self._is_over = False
            return None
        return spec

    def _watch(self) -> None:
        self._watching_thread = _thread.get_ident()
        try:
            _watch(self._directory)
        finally:
            self._watching_thread = None
            self._leave_names_to_the_script()

    def _find_what_watches(self, name: str, path: object, target: object) -> object:
        """Find what we need ourselves: nothing that lies beside the script and has its name."""
        if path is not None:  # within a package
            return None
        from importlib.machinery import PathFinder

        if self._is_the_scripts(name) and name not in sys.stdlib_module_names | _TRAINS_WITH:
            # Packages may look for themselves by name, so there cannot be two of them.
            raise ImportError(f"a module of the script is called {name!r}", name=name)
        finders: list[object] = [*sys.meta_path]
        for finder in finders:
            find = None if finder is self else getattr(finder, "find_spec", None)
            where = self._path_at_start if finder is PathFinder else None
            spec = None if find is None else find(name, where, target)
            if spec is not None:
                self._found.add(name)
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def _is_the_scripts(self, name: str) -> bool:
        """Tell whether the script would find another module by this name than we do."""
        from importlib.machinery import PathFinder

        ours, its = (PathFinder.find_spec(name, path) for path in (self._path_at_start, sys.path))
        return ours is not None and its is not None and ours.origin != its.origin

    def _leave_names_to_the_script(self) -> None:
        """Forget what we have loaded under a name that means another module to the script."""
        for name in self._found - _TRAINS_WITH:
            if self._is_the_scripts(name):
                for loaded in [each for each in sys.modules if each.split(".")[0] == name]:
                    del sys.modules[loaded]


try:
    _import_the_one_we_hide()
finally:
    if os.environ.get("XONAR_PROFILE_REPORTS"):
        sys.meta_path.insert(0, _AtFirstUse(os.environ["XONAR_PROFILE_REPORTS"]))  # type: ignore[arg-type]
