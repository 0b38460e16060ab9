"""Profiles that `xonar profile --json` has written, and the kinds that they are taken for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xonar_prefect.cli.offered_profiles import offered_profile
from xonar_prefect.cli.server import connected, existing_xonar_pool
from xonar_prefect.core.identity import Recipe
from xonar_prefect.errors import FileContentError, WrongUsageError

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

    from xonar_prefect.store import Store, StoredProfile

IMPORTED_FLOW = "imported"
_FIGURES = ("active_fraction", "step_seconds", "peak_memory_mib")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a profile is taken for: its key, and the recipe that makes such keys."""

    key: str
    recipe: Recipe


def is_of_a_command(values: object) -> bool:
    """Tell whether the content of a JSON file is such a profile."""
    return isinstance(values, dict) and not lacking(values)


def lacking(values: Mapping[str, Any]) -> list[str]:
    """Return the figures without which it is no such profile; an unknown one is there as null."""
    return [name for name in _FIGURES if name not in values]


def ended_with(values: Mapping[str, Any]) -> int | None:
    """Return the exit code of the command; None where the file does not say it."""
    exit_code = values.get("exit_code")
    return exit_code if isinstance(exit_code, int) else None


def named_after(path: Path, values: Mapping[str, Any]) -> Kind:
    """Return a kind of its own, whose key is the name of the file."""
    task = str(values.get("command") or path.stem)
    return Kind(path.stem, Recipe(flow=IMPORTED_FLOW, entrypoint=None, task=task))


def stored(
    path: Path, values: Mapping[str, Any], kind: Kind, device_model: str | None
) -> StoredProfile:
    """Return the profile as one of this kind.

    Args:
        path: The file, for messages; its date counts where it says none.
        values: What is in it.
        kind: The kind.
        device_model: The device model; None for that in the file.

    Raises:
        FileContentError: A value cannot be, or nothing was measured.
        WrongUsageError: Nobody says on which device model it was measured.
    """
    from xonar_prefect.store import StoredProfile

    if all(values[name] is None for name in _FIGURES):
        problem = "holds no figures: the command ended before it could be looked at"
        raise FileContentError(path, 1, None, problem)
    model = device_model or values.get("device_model")
    if model is None:
        raise WrongUsageError(
            f"{path} does not say on which device model it was measured; give it with "
            "--device-model MODEL, as `xonar gpus` names it."
        )
    of_kind = {"key": kind.key, "device_model": str(model), "code_version": None, "joint": False}
    measured_at_s = values.get("measured_at_s") or path.stat().st_mtime
    try:
        profile = offered_profile({**values, **of_kind, "measured_at_s": measured_at_s})
    except ValueError as error:
        problem = f"is no profile as `xonar profile --json` writes it ({error})"
        raise FileContentError(path, 1, None, problem) from None
    return StoredProfile(profile=profile, recipe=kind.recipe, published_at_s=profile.measured_at_s)


async def of_deployment(
    store: Store, name: str, task: str | None, parameters: Mapping[str, Any]
) -> Kind:
    """Return the kind of a deployment's runs.

    Args:
        store: Knows the recipes of what has run already.
        name: The deployment, as FLOW/DEPLOYMENT.
        task: Its training task; None for the only one that is known.
        parameters: Parameters of the runs that differ from the deployment's own.

    Raises:
        ServerUnreachableError: The Prefect server does not answer.
        UnknownParameterError: What makes the key is no parameter of it.
        WorkPoolError: It is in no pool of ours.
        WrongUsageError: There is no such deployment or parameter, or its task must be named.
    """
    from prefect.exceptions import ObjectNotFound

    from xonar_prefect.worker.configuration import checked_variables
    from xonar_prefect.worker.held_runs import parameter_defaults

    unknown = (
        f"There is no deployment {name!r}; name it as FLOW/DEPLOYMENT, as `prefect deployment ls` "
        "shows it."
    )
    flow, slash, own_name = name.partition("/")
    if not (flow and slash and own_name):
        raise WrongUsageError(unknown)
    async with connected() as client:
        try:
            deployment = await client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise WrongUsageError(unknown) from None
        pool = await existing_xonar_pool(client, deployment.work_pool_name or "")
    variables = checked_variables(pool.base_job_template, deployment.job_variables or {})
    _check(parameters, deployment)
    recipe = _recipe(store, flow, deployment.entrypoint, task)
    of_runs = {**parameter_defaults(deployment), **deployment.parameters, **parameters}
    return Kind(recipe.key_for(of_runs, variables.gpus), recipe)


def parameters_in(texts: tuple[str, ...]) -> dict[str, Any]:
    """Read parameters as `prefect deployment run --param` does: JSON where it is, else text.

    >>> parameters_in(("epochs=2", "model=mlp"))
    {'epochs': 2, 'model': 'mlp'}

    Raises:
        WrongUsageError: One is not of the form NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise WrongUsageError(f"--param is {text!r}; write it as NAME=VALUE.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _check(parameters: Mapping[str, Any], deployment: DeploymentResponse) -> None:
    known = (deployment.parameter_openapi_schema or {}).get("properties", {})
    for name in parameters:
        if name not in known:
            choices = ", ".join(known) or "none"
            raise WrongUsageError(
                f"--param names {name!r}, which is no parameter of the deployment; its parameters "
                f"are: {choices}."
            )


def _recipe(store: Store, flow: str, entrypoint: str | None, task: str | None) -> Recipe:
    """Return the recipe of the training task, as it is known where it is known."""
    known = {each.task: each for each in store.recipes_for(flow, entrypoint)}
    if task is None and len(known) == 1:
        (task,) = known
    if task is None:
        names = (
            ", ".join(known) or f"the function's under @xonar_task, or {flow} where it is a flow"
        )
        raise WrongUsageError(
            f"The training task of the flow {flow!r} is not known; name it with --task: {names}."
        )
    if known and task not in known:
        raise WrongUsageError(
            f"--task is {task!r}, but the training tasks of the flow {flow!r} are: "
            f"{', '.join(known)}."
        )
    return known.get(task) or Recipe(flow=flow, entrypoint=entrypoint, task=task)
