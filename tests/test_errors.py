"""Every error is one sentence, or two, for a person: what is wrong and what to do."""

from __future__ import annotations

import re

import pytest

from xonar_prefect import errors
from xonar_prefect.errors import XonarError

EXAMPLES = [
    errors.InvalidValueError("steps", -1, "zero or greater"),
    errors.UnknownPolicyError("best", ["serial", "parallel"]),
    errors.JobVariableError.unknown("memory_request_mb", "memory_request_mib", ["gpus"]),
    errors.JobVariableError.unknown("colour", None, ["gpus"]),
    errors.JobVariableError.wrong("gpus", "two", "a whole number"),
    errors.WrongSettingError("XONAR_POLL_SECONDS", "soon", "a number"),
    errors.MisspeltSettingError("XONAR_POL_SECONDS", "XONAR_POLL_SECONDS"),
    errors.UnknownParameterError("bach", "nightly", ["batch"]),
    errors.CommandError.missing(),
    errors.CommandError.not_started("trian.py", FileNotFoundError(2, "No such file or directory")),
    errors.CommandError.unwritable("/srv/p.json", "permission denied"),
    errors.CommandError.mixed(),
    errors.ServerUnreachableError(None),
    errors.ServerUnreachableError("http://127.0.0.1:4200/api", "refused"),
    errors.WorkerNameTakenError("one", "gpus"),
    errors.NoDeviceError("there is no driver"),
    errors.DevicesTakenError(2, ["worker 'one' of pool 'gpus'"]),
    errors.DriverMismatchError("Driver/library version mismatch"),
    errors.UnknownDeviceError("7", ["0 = GPU-aaaa"]),
    errors.AmbiguousDeviceError("GPU-", ["GPU-aaaa", "GPU-bbbb"]),
    errors.NothingToReleaseError("GPU-aaaa"),
    errors.NotReleasableError("GPU-aaaa", "it is lost"),
    errors.TimeTextError.of_duration("soon"),
    errors.TimeTextError.of_moment("soon"),
    errors.TimeTextError.passed("2001-01-01"),
    errors.TimeTextError.both(),
    errors.StoreTooNewError("sqlite:///store.db", "0009", "0001"),
    errors.FlowOverTaskError("train"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_message_ends_as_a_sentence_and_stays_on_one_line(error: XonarError) -> None:
    text = str(error)
    assert re.fullmatch(r"[^\n]+[.?]", text)


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else None
    real = {
        name: next(base.__name__ for base in kind.__bases__ if issubclass(base, Exception))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, XonarError) and kind is not XonarError
    }
    assert {name: base for name, base in drawn.items() if base} == real
