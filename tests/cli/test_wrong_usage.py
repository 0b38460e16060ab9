from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gpus", "drain", "0"), 'Command "gpus drain" needs --reason, which is missing;'),
        (("pool", "create"), 'Command "pool create" needs NAME, which is missing;'),
        (("worker", "install", "--print"), 'Command "start" needs --pool, which is missing;'),
        (
            ("gpus", "drain", "0", "--reason", "fan", "--for", "-2h"),
            "needs a value after --for, but '-2h' begins with a dash and is taken for an option.",
        ),
        (
            ("gpus", "drain", "0", "--reason", "--for", "2h"),
            "needs a value after --reason, but '--for' begins with a dash and is taken for",
        ),
        (("worker", "start", "-p"), "needs a value after -p, but it is last."),
        (("gpus", "release", "0", "[red]"), "['[red]']"),
        (("queue", "--nope"), "--nope"),
    ],
)
def test_what_is_missing_is_not_what_has_no_value(xonar, arguments, sentence: str) -> None:
    ended = xonar(*arguments)
    assert (ended.status, ended.output) == (2, "")
    assert sentence in ended.errors
    assert ended.errors.count("Error") == 1
