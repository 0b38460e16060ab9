"""Everything this package raises on purpose.

XonarError
├── InvalidValueError       a value that cannot be (also a ValueError)
├── SettingsError           an option, job variable or environment variable is wrong
│   ├── UnknownPolicyError
│   └── UnknownParameterError   `profile_by` names no parameter
├── ServerUnreachableError  the Prefect server is missing or does not answer
├── WorkPoolError           the pool is missing or has another type
├── DeviceError             an accelerator cannot be used
│   └── NoDeviceError
├── StoreError
│   └── StoreTooNewError    written by a newer version of this package
└── FlowOverTaskError       `@flow` was put over `@xonar_task` (also a TypeError)

An error takes the facts and builds its own message: what is wrong, with what, what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable


class XonarError(Exception):
    """Base of all errors of this package; its text is one sentence for a person."""


class InvalidValueError(XonarError, ValueError):
    """A value that cannot be."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} is {value!r}; it must be {expected}.")


class SettingsError(XonarError):
    """An option, job variable or environment variable is wrong."""


class UnknownPolicyError(SettingsError):
    """No policy has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is no policy named {name!r}; choose one of {', '.join(sorted(known))}."
        )


class UnknownParameterError(SettingsError):
    """`profile_by` names a parameter that the flow does not have."""

    def __init__(self, name: str, flow: str, known: Iterable[str]) -> None:
        choices = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"profile_by names {name!r}, but flow {flow!r} has no such parameter; "
            f"its parameters are: {choices}."
        )


class ServerUnreachableError(XonarError):
    """The Prefect server is missing or does not answer."""

    def __init__(self, url: str | None, cause: str | None = None) -> None:
        if url is None:
            text = (
                "PREFECT_API_URL is not set, so there is no Prefect server to talk to; start one "
                "with `prefect server start` and run `prefect config set "
                "PREFECT_API_URL=http://127.0.0.1:4200/api`."
            )
        else:
            detail = f" ({cause})" if cause else ""
            text = (
                f"The Prefect server at {url} does not answer{detail}; start it with "
                "`prefect server start`, or correct PREFECT_API_URL."
            )
        super().__init__(text)


class WorkPoolError(XonarError):
    """The work pool is missing or has another type."""


class DeviceError(XonarError):
    """An accelerator cannot be used."""


class NoDeviceError(DeviceError):
    """No accelerator is visible to this worker."""

    def __init__(self, looked_for: str) -> None:
        super().__init__(
            f"No device was found: {looked_for}; run `xonar doctor` to see why, or use "
            "processor cores with `--devices cpu`."
        )


class StoreError(XonarError):
    """The store cannot be read or written."""


class StoreTooNewError(StoreError):
    """The store was written by a newer version of this package."""

    def __init__(self, url: str, found: str, known: str) -> None:
        super().__init__(
            f"The store {url} has schema {found}, but this version knows only {known}; upgrade "
            "xonar_prefect, or point XONAR_STORE_URL at another database."
        )


class FlowOverTaskError(XonarError, TypeError):
    """`@flow` was put over `@xonar_task`."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"@flow over @xonar_task cannot work for {name!r}: swap the two, so that @xonar_task "
            "stands above @flow, or call the task from a flow."
        )
