"""A systemd unit that runs a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from xonar_prefect.settings import SETTING_VARIABLES

ENVIRONMENT_FILE = "/etc/xonar/worker.env"

# What the worker reads beside its own settings. Keys and passwords are in none of them.
_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "DO_NOT_TRACK",
        "PREFECT_API_URL",
        "PREFECT_HOME",
        "PREFECT_PROFILE",
        "PREFECT_PROFILES_PATH",
    }
)

_UNIT = """\
# Save as /etc/systemd/system/xonar-worker.service, then:
#   systemctl daemon-reload && systemctl enable --now xonar-worker
[Unit]
Description=Xonar worker: lets deep-learning trainings share this host's GPUs
Wants=network-online.target
After=network-online.target
# The Prefect server may be away for a night.
StartLimitIntervalSec=0

[Service]
User={user}
WorkingDirectory=~
ExecStart={command}
{environment}# Secrets, as PREFECT_API_KEY or an address with a password, belong here (mode 600):
EnvironmentFile=-{environment_file}
# Trainings are no part of the worker: they run on when it stops, and it adopts them again.
KillMode=process
# One training that the kernel ends for lack of memory must not take the others with it.
OOMPolicy=continue
Restart=on-failure
RestartSec=10
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""


def unit(
    options: Sequence[str], environment: Mapping[str, str], *, interpreter: str, user: str
) -> str:
    """Return the unit as text, without anything secret.

    Args:
        options: Options of `xonar worker start`.
        environment: Where settings are taken from.
        interpreter: The Python that has this package; `xonar` is beside it.
        user: Whose worker it is.
    """
    program = str(Path(interpreter).with_name("xonar"))
    words = (program, "worker", "start", *options)
    command = " ".join(_quoted(word).replace("$", "$$") for word in words)
    lines = [
        f"Environment={_quoted(f'{name}={value}')}\n"
        for name, value in sorted(environment.items())
        if name in _VARIABLES | SETTING_VARIABLES and not _may_be_secret(value)
    ]
    return _UNIT.format(
        user=user,
        command=command,
        environment="".join(lines),
        environment_file=ENVIRONMENT_FILE,
    )


def _may_be_secret(value: str) -> bool:
    """Tell whether a value is an address with a user or a query, where passwords are."""
    try:
        address = urlsplit(value)
    except ValueError:
        return True
    return bool(address.netloc and ("@" in address.netloc or address.query))


def _quoted(word: str) -> str:
    """Write a word so that systemd takes it as it is."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = escaped.replace("%", "%%")
    plain = all(letter.isalnum() or letter in "-_./=:,@+" for letter in word)
    return escaped if plain and word else f'"{escaped}"'
