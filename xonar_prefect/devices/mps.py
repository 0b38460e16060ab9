"""Whose CUDA Multi-Process Service a training would come upon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks
_NO_PIPES = "/nonexistent/no-mps-of-another-user"


def keep_off_others(environment: Mapping[str, str], user_id: int) -> dict[str, str]:
    """Return the variables that keep a process off another user's service.

    Every CUDA program asks the service it finds, also where that belongs to somebody else; it is
    then refused ("User did not send valid credentials"), or waits for that user's programs to end.
    Pointed at no service, it takes turns on the GPU as if there were none.

    Args:
        environment: The environment in which the process would look.
        user_id: Who the process belongs to.
    """
    pipes = Path(environment.get(PIPE_VARIABLE) or _DEFAULT_PIPES)
    try:
        owner = (pipes / "control").stat().st_uid
    except OSError:  # there is no service, or none that it could reach
        return {}
    return {} if owner == user_id else {PIPE_VARIABLE: _NO_PIPES}
