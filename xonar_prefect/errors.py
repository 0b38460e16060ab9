"""Everything this package raises on purpose.

XonarError
├── InvalidValueError       a value that cannot be (also a ValueError)
├── SettingsError           an option, job variable or environment variable is wrong
│   ├── WrongSettingError       a value that it cannot have
│   ├── MisspeltSettingError    a variable that looks like a setting
│   ├── UnknownPolicyError
│   ├── JobVariableError        misspelt or wrong job variable
│   ├── UnknownParameterError   `profile_by` names no parameter
│   ├── CoreListError           a list of processor cores cannot be read
│   └── WrongUsageError         options of a command exclude or contradict each other
│       └── TimeTextError           a time on the command line cannot be read
├── ServerUnreachableError  the Prefect server is missing or does not answer
├── WorkPoolError           the pool is missing or has another type
├── WorkerNameTakenError    two workers of one name
├── DeviceError             an accelerator cannot be used
│   ├── NoDeviceError
│   │   └── DevicesTakenError   other workers or their trainings have them
│   ├── DriverMismatchError     the driver was upgraded under a running kernel
│   ├── VisibleDevicesError     `CUDA_VISIBLE_DEVICES` names what is not there
│   ├── UnknownDeviceError      no device has this id
│   ├── AmbiguousDeviceError    several devices begin with it
│   ├── NothingToReleaseError   nothing keeps trainings off the device
│   └── NotReleasableError      what does, does not end by a word
├── UnknownProfileError     no profile, or several, by this key
├── StoreError
│   ├── StoreUnusableError  it cannot be opened, read or written
│   └── StoreTooNewError    written by a newer version of this package
├── FileError               a file with data is unusable
│   ├── FileUnreadableError it cannot be opened or decoded
│   ├── FileContentError    a row of it is wrong
│   └── FileUnwritableError it cannot be written
├── SimulationError         a simulation cannot be run
│   ├── NoHistoryError          a pool has nothing to replay
│   └── SimulationStalledError  nothing runs and nothing is released
├── CommandError            a command to be profiled cannot be run
├── DemoError               the demonstration cannot go on
└── FlowOverTaskError       `@flow` was put over `@xonar_task` (also a TypeError)

An error takes the facts and builds its own message: what is wrong, with what, what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable


class XonarError(Exception):
    """Base of all errors of this package; its text is one sentence for a person.

    Attributes:
        exit_status: What a command ends with that met it.
    """

    exit_status = 1


class InvalidValueError(XonarError, ValueError):
    """A value that cannot be."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} is {value!r}; it must be {expected}.")


class SettingsError(XonarError):
    """An option, job variable or environment variable is wrong."""


class WrongSettingError(SettingsError):
    """A setting has a value that it cannot have."""

    def __init__(self, variable: str, value: object, expected: str) -> None:
        super().__init__(
            f"{variable} is {value!r}: it must be {expected}; correct it or leave it out."
        )


class MisspeltSettingError(SettingsError):
    """A variable looks like a setting, but is none."""

    def __init__(self, variable: str, near: str) -> None:
        super().__init__(f"{variable} is set, but there is no such setting; did you mean {near}?")


class UnknownPolicyError(SettingsError):
    """No policy has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is no policy named {name!r} (option --policy or XONAR_POLICY); choose one of "
            f"{', '.join(sorted(known))}."
        )


class JobVariableError(SettingsError):
    """A job variable of a deployment or run is misspelt or has a wrong value."""

    @classmethod
    def unknown(cls, name: str, near: str | None, known: Iterable[str]) -> JobVariableError:
        """Say that there is no such variable, and which one may be meant."""
        hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(known))}."
        return cls(f"There is no job variable {name!r}; {hint}")

    @classmethod
    def wrong(cls, name: str, value: object, expected: str) -> JobVariableError:
        """Say which variable has which wrong value, and what it must be."""
        return cls(
            f"Job variable {name!r} is {value!r}: it must be {expected}; correct it in the "
            "deployment or run."
        )


class UnknownParameterError(SettingsError):
    """`profile_by` names a parameter that the flow does not have."""

    def __init__(self, name: str, flow: str, known: Iterable[str]) -> None:
        choices = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"profile_by names {name!r}, but flow {flow!r} has no such parameter; "
            f"its parameters are: {choices}."
        )


class CoreListError(SettingsError):
    """A list of processor cores cannot be read, or names cores that cannot be used."""

    def __init__(self, text: str, why: str, available: Iterable[int]) -> None:
        cores = ", ".join(str(core) for core in available)
        super().__init__(
            f"The list of processor cores is {text!r}: {why}; write it as in `0,2-3`, of the "
            f"cores this process may use: {cores}."
        )


class WrongUsageError(SettingsError):
    """Options of a command exclude each other, or one cannot be read."""


class TimeTextError(WrongUsageError):
    """A time on the command line cannot be read, or has passed."""

    @classmethod
    def of_duration(cls, text: str) -> TimeTextError:
        """Say how to write how long something lasts."""
        return cls(
            f"{text!r} is no length of time; write it as in `45m`, `2h`, `1d` or `1h30m`, up to "
            "ten years."
        )

    @classmethod
    def of_moment(cls, text: str) -> TimeTextError:
        """Say how to write a moment."""
        return cls(
            f"{text!r} is no time; write it as in `18:00`, `2026-11-30` or `2026-11-30 08:00`."
        )

    @classmethod
    def passed(cls, text: str) -> TimeTextError:
        """Say that a moment lies in the past."""
        return cls(f"{text!r} has passed; give a time in the future.")

    @classmethod
    def both(cls) -> TimeTextError:
        """Say that two ends were given."""
        return cls("Give either `--for` or `--until`, not both.")


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


class WorkerNameTakenError(XonarError):
    """A worker of this name runs already."""

    def __init__(self, name: str, pool: str) -> None:
        super().__init__(
            f"A worker named {name!r} of pool {pool!r} runs on this host already; stop it, or give "
            "this one another name with --name."
        )


class DeviceError(XonarError):
    """An accelerator cannot be used."""


class NoDeviceError(DeviceError):
    """No accelerator is visible to this worker."""

    def __init__(self, looked_for: str) -> None:
        super().__init__(
            f"No device was found: {looked_for}; run `xonar doctor` to see why, or use "
            "processor cores with `--devices cpu`."
        )


class DevicesTakenError(NoDeviceError):
    """Other workers, or trainings that they left running, have all devices."""

    def __init__(self, count: int, holders: Iterable[str]) -> None:
        XonarError.__init__(
            self,
            f"All {count} devices of this host are used by {', '.join(sorted(holders))}, or by "
            "trainings that it left running; start a worker of that name again to adopt them, or "
            "wait until they have ended.",
        )


class DriverMismatchError(DeviceError):
    """The NVIDIA driver in the kernel and its library have different versions."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The NVIDIA driver and its library do not match ({cause}), as after an upgrade "
            "without a restart: running trainings go on, new ones cannot start; reboot, or "
            "unload and load the kernel module `nvidia`."
        )


class VisibleDevicesError(DeviceError):
    """`CUDA_VISIBLE_DEVICES` of the worker names what is not there."""

    def __init__(self, visible: str, entry: str, why: str, present: Iterable[str]) -> None:
        devices = ", ".join(present) or "none"
        super().__init__(
            f"CUDA_VISIBLE_DEVICES is {visible!r}, but {entry!r} {why}; correct it, or unset it "
            f"to use all devices, which are: {devices}."
        )


class UnknownDeviceError(DeviceError):
    """No device has this id."""

    def __init__(self, device_id: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is no device {device_id!r} here; the devices are: {', '.join(known) or 'none'}."
        )


class AmbiguousDeviceError(DeviceError):
    """Several devices have an id that begins like this."""

    def __init__(self, beginning: str, matching: Iterable[str]) -> None:
        super().__init__(
            f"Several devices begin with {beginning!r}: {', '.join(sorted(matching))}; give more "
            "of the one you mean."
        )


class NothingToReleaseError(DeviceError):
    """A device was to be released that takes trainings."""

    def __init__(self, device: str) -> None:
        super().__init__(
            f"Nothing keeps trainings off {device}: it is neither drained nor in quarantine, so "
            "there is nothing to release; see `xonar gpus`."
        )


class NotReleasableError(DeviceError):
    """A device was to be released from what does not end by a word."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(
            f"{device} takes no training because of this: {reason}; mend that, and it is released "
            "by itself."
        )


class UnknownProfileError(XonarError):
    """No profile has this key, or several begin with it."""

    def __init__(self, key: str, matching: Iterable[str]) -> None:
        several = ", ".join(sorted(matching))
        super().__init__(
            f"Several profile keys begin with {key!r}: {several}; give more of the one you mean."
            if several
            else f"No profile has the key {key!r}; `xonar profiles list` shows those that exist."
        )


class StoreError(XonarError):
    """The store cannot be read or written."""


class StoreUnusableError(StoreError):
    """The store cannot be opened, read or written."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(
            f"The store {url} cannot be used: {cause}; correct that, or point XONAR_STORE_URL "
            "at another database."
        )


class StoreTooNewError(StoreError):
    """The store was written by a newer version of this package."""

    def __init__(self, url: str, found: str, known: str) -> None:
        super().__init__(
            f"The store {url} has schema {found}, but this version knows only {known}; upgrade "
            "xonar_prefect, or point XONAR_STORE_URL at another database."
        )


class FileError(XonarError):
    """A file with data cannot be used."""


class FileUnreadableError(FileError):
    """A file cannot be opened or decoded."""

    def __init__(self, path: object, cause: str, expected: str = "CSV file with a header") -> None:
        super().__init__(f"Cannot read {path}: {cause}; name a readable {expected}.")


class FileContentError(FileError):
    """A line of a file is wrong."""

    def __init__(self, path: object, line: int, column: str | None, problem: str) -> None:
        where = "" if column is None else f" column '{column}'"
        super().__init__(f"{path}, line {line}:{where} {problem}.")


class FileUnwritableError(FileError):
    """A file cannot be written."""

    def __init__(self, path: object, cause: str) -> None:
        super().__init__(f"Cannot write {path}: {cause}; name another file.")


class SimulationError(XonarError):
    """A simulation cannot be run as it was asked for."""


class NoHistoryError(SimulationError):
    """A pool has nothing to replay."""

    def __init__(self, pool: str, completed: int) -> None:
        super().__init__(
            f"There is nothing to replay of the work pool {pool!r}: it has {completed} completed "
            "runs, and this store knows the release of none of them; point XONAR_STORE_URL at the "
            "database of its worker."
        )


class SimulationStalledError(SimulationError):
    """Nothing runs any more, and the policy releases nothing of what is held."""

    def __init__(self, policy: str, held: int, reason: str) -> None:
        super().__init__(
            f"The policy {policy!r} releases none of {held} held trainings though nothing runs; "
            f"it says: {reason}"
        )


class FlowOverTaskError(XonarError, TypeError):
    """`@flow` was put over `@xonar_task`."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"@flow over @xonar_task cannot work for {name!r}: swap the two, so that @xonar_task "
            "stands above @flow, or call the task from a flow."
        )


class CommandError(XonarError):
    """A command to be profiled cannot be run, or its profile cannot be kept."""

    @classmethod
    def missing(cls) -> CommandError:
        """Say that there is no command."""
        return cls(
            "There is no command to profile; give it after `--`, as in "
            "`xonar profile -- python train.py`."
        )

    @classmethod
    def misspelt_option(cls, option: str) -> CommandError:
        """Say that there is no such option."""
        return cls(
            f"`xonar profile` has no option {option}; see `xonar profile --help`, and give the "
            "command after `--`, as in `xonar profile -- python train.py`."
        )

    @classmethod
    def not_started(cls, command: str, cause: Exception) -> CommandError:
        """Say that it cannot be started; the exit status is that of a shell."""
        why = (cause.strerror if isinstance(cause, OSError) else None) or cause
        error = cls(f"{command!r} cannot be run ({why}); write it as in a shell, after `--`.")
        error.exit_status = 127 if isinstance(cause, FileNotFoundError) else 126
        return error

    @classmethod
    def unwritable(cls, target: object, cause: object) -> CommandError:
        """Say that the profile could not be written there."""
        return cls(f"Cannot write {target} ({cause}); choose another file with `--json FILE`.")

    @classmethod
    def not_written(cls, target: object, cause: object) -> CommandError:
        """Say that there is no room for the profile after all, and where it is instead."""
        return cls(
            f"Cannot write {target} ({cause}). This is the profile; `xonar profiles import` takes "
            "it from a file."
        )

    @classmethod
    def mixed(cls) -> CommandError:
        """Say that standard output is the command's own."""
        return cls(
            "The profile would come between the command's own lines on standard output; name a "
            "file, as in `--json profile.json`."
        )


class DemoError(XonarError):
    """The demonstration cannot go on."""

    @classmethod
    def missing_packages(cls, names: Iterable[str]) -> DemoError:
        """Say which packages the trainings need."""
        return cls(
            f"The demonstration trains with {' and '.join(names)}, which cannot be imported; "
            "install with `pip install 'xonar-prefect[tensorflow-cpu,flows]'` "
            "(`tensorflow` instead of `tensorflow-cpu` on a GPU)."
        )

    @classmethod
    def no_flows(cls, searched: Iterable[object]) -> DemoError:
        """Say where the flows were looked for."""
        places = ", ".join(str(place) for place in searched)
        return cls(
            f"The flows to demonstrate with are not in {places}; they are in the directory `flows` "
            "of the repository and not in the installed package: run this in a clone of it, or "
            "name the directory with `--flows DIRECTORY`."
        )

    @classmethod
    def unusable_home(cls, home: object, cause: object) -> DemoError:
        """Say that files cannot be kept there."""
        place = home or "the directory for temporary files"
        return cls(f"Cannot use {place} ({cause}); choose another one with `--home DIRECTORY`.")

    @classmethod
    def unwritable(cls, target: object, cause: object) -> DemoError:
        """Say that the result could not be written there."""
        return cls(f"Cannot write {target} ({cause}); choose another file with `--json FILE`.")

    @classmethod
    def home_in_use(cls, home: object) -> DemoError:
        """Say that there is another demonstration."""
        return cls(
            f"Another demonstration runs in {home}; wait for its end, or choose another directory "
            "with `--home`."
        )

    @classmethod
    def port_taken(cls, port: int) -> DemoError:
        """Say that somebody else listens there."""
        return cls(f"Port {port} cannot be used; choose another one, or leave `--port` out.")

    @classmethod
    def ended(cls, name: str, exit_code: int | None, last_words: str) -> DemoError:
        """Say that a process of the demonstration is gone, with the end of its output."""
        return cls(
            f"The {name} of the demonstration ended with exit code {exit_code}; its last words "
            f"say why:\n{last_words}"
        )

    @classmethod
    def server_silent(cls, seconds: float, last_words: str) -> DemoError:
        """Say that the server is up and does not answer."""
        return cls(
            f"The private Prefect server did not answer within {seconds:.0f} s; try again when the "
            f"machine is less busy. Its last words:\n{last_words}"
        )

    @classmethod
    def stalled(cls, seconds: float, last_words: str) -> DemoError:
        """Say that no training advances."""
        return cls(
            f"No training has advanced for {seconds:.0f} s; the demonstration gives up. The last "
            f"words of the worker:\n{last_words}"
        )
