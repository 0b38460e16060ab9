"""The control groups that limit this process, of both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def own_groups(
    controller: str, *, proc: Path = PROC, cgroups: Path = CONTROL_GROUPS
) -> tuple[Path, ...]:
    """Return the directories of our groups and of those above them, as far as they are shown.

    Both versions may be mounted at once; a file that a directory lacks is no limit.

    Args:
        controller: Its name in version 1, such as `"memory"`; version 2 has one tree for all.
        proc: Where `/proc` is.
        cgroups: Where the control groups are mounted.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    found: list[Path] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            found += _with_those_above(cgroups, group)
        elif controller in controllers.split(","):
            found += _with_those_above(cgroups / controller, group)
    return tuple(found)


def _with_those_above(root: Path, group: str) -> list[Path]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def number(file: Path) -> int | None:
    """Return the number in a group's file; None for no such file and for no limit."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or `max`
        return None


def statistic(file: Path, name: str) -> int:
    """Return a line's number from a group's file; 0 where it is not told."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
