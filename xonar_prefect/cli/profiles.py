"""`xonar profiles`: what was measured of each kind of training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from cyclopts import App

from xonar_prefect.cli.command_profiles import (
    ended_with,
    named_after,
    of_deployment,
    parameters_in,
    stored,
)
from xonar_prefect.cli.output import (
    AsJson,
    device,
    measured_percent,
    memory,
    milliseconds,
    percent,
    print_json,
    print_table,
    say,
)
from xonar_prefect.cli.profile_files import as_csv, as_json, ingest, is_json, read, write
from xonar_prefect.errors import UnknownProfileError, WrongUsageError

if TYPE_CHECKING:
    from xonar_prefect.store import Store, StoredProfile

app = App(name="profiles", help="What was measured of each kind of training.")


@app.command(name="list")
def list_profiles(*, json: AsJson = False) -> None:
    """List all profiles, the most recently published first.

    Example: `xonar profiles list --json`

    Args:
        json: Print JSON.
    """
    known = _stored_profiles()
    if json:
        print_json([as_json(each) for each in known])
        return
    print_table(
        "Profiles",
        ["key", "flow", "task", "device model", "active|", "step alone|", "peak memory|", "steps|"],
        [
            (
                each.profile.key,
                each.recipe.flow,
                each.recipe.task,
                each.profile.device_model,
                measured_percent(
                    each.profile.active_fraction, each.profile.active_fraction_interval
                ),
                milliseconds(each.profile.step_seconds),
                memory(each.profile.peak_memory_mib),
                str(each.profile.steps),
            )
            for each in known
        ],
        empty="Nothing was profiled yet; the first run of a decorated training does it.",
    )


@app.command
def show(key: str, /, *, json: AsJson = False) -> None:
    """Show all that is known of one kind of training.

    Example: `xonar profiles show 3f2a`

    Args:
        key: Its profile key, or enough of its beginning to be unambiguous.
        json: Print JSON.
    """
    chosen = _matching(key)
    if json:
        print_json([as_json(each) for each in chosen])
        return
    for each in chosen:
        title = f"{each.profile.key} on {each.profile.device_model}"
        print_table(title, ["", ""], _rows(each), empty="")


@app.command
def export(file: Path | None = None, /, *, json: AsJson = False) -> None:
    """Write all profiles as CSV, as `xonar simulate --profiles` reads them, or as JSON.

    JSON keeps everything. In CSV `training` is the profile key; the active fraction of a profile
    without a step time has no column there.

    Example: `xonar profiles export profiles.csv`, or `xonar profiles export backup.json`

    Args:
        file: Where to, as JSON where its name ends in .json, else as CSV; by default standard
            output.
        json: Write JSON, whatever the file's name.
    """
    known = _stored_profiles()
    json = json or (file is not None and is_json(file))
    text = dumps([as_json(each) for each in known], indent=2) + "\n" if json else as_csv(known)
    if file is None:
        sys.stdout.write(text)
        return
    write(file, text)
    say(f"{_profiles(len(known))} written to {file}.")


@app.command(name="import")
def import_profiles(
    file: Path,
    /,
    *,
    deployment: str | None = None,
    task: str | None = None,
    param: tuple[str, ...] = (),
    device_model: str | None = None,
) -> None:
    """Take in profiles that `export` or `xonar profile --json` has written.

    What is known and newer stays. Nothing that is known is lost: CSV, which keeps little, only
    completes it. A profile of a command gets a kind of its own, with the file's name as its key;
    --deployment has it stand for a deployment's runs, until one of them is profiled itself.

    Example: `xonar profiles import backup.json`, or `xonar profiles import mlp.json --deployment
    nightly/gpus --task train --param epochs=2`

    Args:
        file: JSON where its name ends in .json, else CSV, in which the column `training` holds
            the profile key.
        deployment: FLOW/DEPLOYMENT that a command's profile is for.
        task: Its training task; needed where none is known yet, or several are.
        param: NAME=VALUE of a parameter of its runs that is not the deployment's own; several
            times for several.
        device_model: Device model that a command's profile is of, where the file does not say it
            or names another; as in `xonar gpus`.
    """
    from xonar_prefect.store import Taken

    found = read(file)
    options = (deployment, task, param, device_model)
    if isinstance(found, list) and any(options):
        raise WrongUsageError(
            f"{file} knows what its profiles are of; --deployment, --task, --param and "
            "--device-model are for a file of `xonar profile --json`."
        )
    if deployment is None and (task or param):
        raise WrongUsageError("--task and --param need --deployment FLOW/DEPLOYMENT.")
    with _store() as store:
        if isinstance(found, dict):
            kind = (
                named_after(file, found)
                if deployment is None
                else anyio.run(of_deployment, store, deployment, task, parameters_in(param))
            )
            values, one = found, stored(file, found, kind, device_model)
            found = [one]
            say(
                f"{file} is taken for {kind.key} on {one.profile.device_model}, as "
                f"`xonar profiles show {kind.key}` shows it."
            )
            if exit_code := ended_with(values):
                say(
                    f"Its command ended with exit code {exit_code}: it may need more memory than "
                    "it had taken by then."
                )
        keys = ingest(store, found)
    say(f"{_profiles(len(keys.get(Taken.WHOLLY, [])))} taken in from {file}.")
    if partly := keys.get(Taken.PARTLY):
        say(
            f"{_profiles(len(partly))} used to complete what is known of the same kind, which says "
            f"more; {_forget_first(partly)}"
        )
    if left_out := keys.get(Taken.NOT):
        say(
            f"{_profiles(len(left_out))} left out, as what is known of the same kind is newer or "
            f"says as much; {_forget_first(left_out)}"
        )


@app.command
def forget(key: str, /) -> None:
    """Forget all that was measured of one kind of training, so that it is profiled again.

    Example: `xonar profiles forget 3f2a`

    Args:
        key: Its profile key, or enough of its beginning to be unambiguous.
    """
    (chosen,) = {each.profile.key for each in _matching(key)}
    with _store() as store:
        store.forget(chosen)
    say(f"Forgot all that was measured of {chosen}; its next run is profiled again.")


def _profiles(number: int) -> str:
    return "1 profile was" if number == 1 else f"{number} profiles were"


def _forget_first(keys: list[str]) -> str:
    return f"`xonar profiles forget {keys[0]}` first has it replaced."


def _matching(key: str) -> list[StoredProfile]:
    """Return the profiles of the one kind whose key is this or begins so."""
    known = _stored_profiles()
    keys = {each.profile.key for each in known}
    matching = {key} & keys or {each for each in keys if key and each.startswith(key)}
    if len(matching) != 1:
        raise UnknownProfileError(key, matching)
    return [each for each in known if each.profile.key in matching]


def _store() -> Store:
    from xonar_prefect.settings import load_settings
    from xonar_prefect.store import Store

    return Store.open(load_settings().effective_store_url)


def _stored_profiles() -> tuple[StoredProfile, ...]:
    with _store() as store:
        return store.profiles()


def _rows(stored: StoredProfile) -> list[tuple[str, str | None]]:
    profile, recipe = stored.profile, stored.recipe
    active = _with_interval(percent, profile.active_fraction, profile.active_fraction_interval)
    step = _with_interval(milliseconds, profile.step_seconds, profile.step_seconds_interval)
    by = recipe.profile_by
    # A CSV file does not say when.
    at_s = stored.published_at_s
    published = datetime.fromtimestamp(at_s).astimezone() if at_s else None
    return [
        ("flow", recipe.flow),
        ("entry point", recipe.entrypoint),
        ("task", recipe.task),
        ("profiled by", "all parameters" if by is None else ", ".join(by)),
        ("active fraction", active),
        ("idle: communication", percent(profile.communication_fraction)),
        ("idle: input", percent(profile.input_fraction)),
        ("idle: other", percent(profile.other_fraction)),
        ("step time alone", step),
        ("peak memory", memory(profile.peak_memory_mib)),
        ("memory measured by", profile.memory_source),
        ("held on the device", memory(profile.held_memory_mib)),
        ("peak main memory", memory(profile.peak_host_memory_mib)),
        ("activity measured by", profile.source),
        ("measured steps", str(profile.steps)),
        ("measured beside a partner", "yes" if profile.joint else "no"),
        ("framework", profile.framework),
        ("device", None if profile.device is None else device(profile.device)),
        ("code version", profile.code_version),
        ("published", published.isoformat(sep=" ", timespec="seconds") if published else None),
    ]


def _with_interval(
    write: Callable[[float | None], str | None],
    value: float | None,
    interval: tuple[float, float] | None,
) -> str | None:
    if interval is None:
        return write(value)
    return f"{write(value)} (95 %: {write(interval[0])} to {write(interval[1])})"
