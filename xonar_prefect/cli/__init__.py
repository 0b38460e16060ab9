"""The command line: `xonar`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_WRONG_USAGE = 2
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 is success, 1 "it did not work" (one sentence on standard error says what to do), 2 wrong
    usage, 130 interrupted by the user. `xonar profile` ends as its command does, or as a shell
    where that cannot be run: 127 if it is not found, else 126.

    Args:
        arguments: The command and its options; those of the process by default.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    # Imports take a second, in which a user may already press Ctrl-C.
    from cyclopts import CycloptsError, CycloptsPanel
    from rich.console import Console

    from xonar_prefect.cli.application import application
    from xonar_prefect.cli.wrong_usage import sentence_of
    from xonar_prefect.errors import WrongUsageError, XonarError

    try:
        status = application()(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        Console(stderr=True).print(CycloptsPanel(sentence_of(error)))
        return _WRONG_USAGE
    except WrongUsageError as error:
        sys.stderr.write(f"xonar: {error}\n")
        return _WRONG_USAGE
    except XonarError as error:
        sys.stderr.write(f"xonar: {error}\n")
        return error.exit_status
    return status if isinstance(status, int) else 0
