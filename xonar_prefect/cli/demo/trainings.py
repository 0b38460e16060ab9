"""The queue of the demonstration: which trainings, in which order, submitted how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from xonar_prefect.errors import DemoError

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient

POOL = "xonar"

_NEEDED = ("tensorflow", "sklearn")


@dataclass(frozen=True, slots=True)
class Kind:
    """A flow of the directory `flows`.

    Attributes:
        name: Short name for tables.
        flow: Name of its function and of its file.
        epochs: Epochs of its trainings, in turn; they do not shape the profile.
    """

    name: str
    flow: str
    epochs: tuple[int, ...]

    @property
    def deployment(self) -> str:
        """Name of its deployment, as in `flows/prefect.yaml`."""
        return self.flow.replace("_", "-")


@dataclass(frozen=True, slots=True)
class QueuedTraining:
    """One training of the queue: its name, its kind and the parameters of its flow."""

    name: str
    kind: Kind
    parameters: Mapping[str, int]


CNN = Kind("cnn", "digits_cnn", (14, 18))
STORE = Kind("store", "digits_from_store", (24, 30))
QUICK = Kind("quick", "digits_quick", (30, 40))
DISTRIBUTED = Kind("distributed", "digits_distributed", (12, 16))
KINDS = (CNN, STORE, QUICK, DISTRIBUTED)

# A training that was never profiled starts alone, and its first partner can only be of a kind that
# has been. So there are more of the mostly idle kinds: enough to go with each other while they are
# all that is known, and then with those that compute.
_TURN = (CNN, STORE, STORE, QUICK, DISTRIBUTED, STORE, CNN, QUICK, QUICK, DISTRIBUTED)
USUAL_TRAININGS = len(_TURN)


def queue_of(size: int) -> tuple[QueuedTraining, ...]:
    """Return a queue of so many trainings; the same for the same size."""
    counts = dict.fromkeys(KINDS, 0)
    queue = []
    for place in range(size):
        kind = _TURN[place % len(_TURN)]
        number = counts[kind]
        counts[kind] += 1
        parameters = {"epochs": kind.epochs[number % len(kind.epochs)], "seed": number}
        queue.append(QueuedTraining(f"{kind.name}-{number + 1}", kind, parameters))
    return tuple(queue)


def one_of_each() -> tuple[QueuedTraining, ...]:
    """Return the queue that profiles every kind once."""
    return tuple(
        QueuedTraining(f"{kind.name}-profile", kind, {"epochs": kind.epochs[0], "seed": 0})
        for kind in KINDS
    )


def find_flows(given: Path | None) -> Path:
    """Return the directory of the flows.

    Raises:
        DemoError: They are not there, or what they need is not installed.
    """
    import xonar_prefect

    beside_the_package = Path(xonar_prefect.__file__).parents[1] / "flows"
    places = [given] if given else [Path("flows").absolute(), beside_the_package]
    for place in places:
        if all((place / f"{kind.flow}.py").is_file() for kind in KINDS):
            missing = [name for name in _NEEDED if find_spec(name) is None]
            if missing:
                raise DemoError.missing_packages(missing)
            return place.resolve()
    raise DemoError.no_flows(places)


def create_pool(client: SyncPrefectClient) -> None:
    """Create the work pool, unless it is there from an earlier demonstration."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    from xonar_prefect.worker.worker import XonarWorker

    template = XonarWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=POOL, type=XonarWorker.type, base_job_template=template)
    try:
        client.create_work_pool(pool)
    except ObjectAlreadyExists:
        return


def cancel_unfinished(client: SyncPrefectClient) -> None:
    """Cancel what an interrupted demonstration in the same home has left in the queue."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import TERMINAL_STATES
    from prefect.states import Cancelled

    ended = FlowRunFilterStateType(not_any_=list(TERMINAL_STATES))
    unfinished = FlowRunFilter(state=FlowRunFilterState(type=ended))
    message = "The demonstration that submitted it was interrupted."
    while runs := client.read_flow_runs(flow_run_filter=unfinished):
        for run in runs:
            client.set_flow_run_state(run.id, Cancelled(message=message), force=True)


def deploy(client: SyncPrefectClient, flows: Path) -> dict[Kind, UUID]:
    """Deploy every kind to the pool; return the ids of the deployments."""
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    pull = {"prefect.deployments.steps.set_working_directory": {"directory": str(flows)}}
    deployments = {}
    for kind in KINDS:
        entrypoint = f"{kind.flow}.py:{kind.flow}"
        flow: Flow[..., Any] = load_flow_from_entrypoint(
            str(flows / entrypoint), use_placeholder_flow=False
        )
        deployments[kind] = client.create_deployment(
            client.create_flow(flow),
            kind.deployment,
            work_pool_name=POOL,
            description=flow.description,
            entrypoint=entrypoint,
            pull_steps=[pull],
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
    return deployments


def submit(
    client: SyncPrefectClient,
    deployments: Mapping[Kind, UUID],
    queue: Sequence[QueuedTraining],
    tag: str,
) -> dict[str, str]:
    """Submit the queue in its order, all at once; return names by run id."""
    return {
        str(
            client.create_flow_run_from_deployment(
                deployments[training.kind],
                parameters=dict(training.parameters),
                name=training.name,
                tags=[tag],
            ).id
        ): training.name
        for training in queue
    }
