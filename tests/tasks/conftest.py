"""What a flow run left behind in Prefect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, Placement, RunDirectory


@dataclass(frozen=True)
class Left:
    """Task runs by name with the name of their state, artifacts by type, the run's graph.

    `profile_states` are the sorted states of the profiling task runs: several may have one name.
    """

    profile_states: list[str]
    task_runs: dict[str, str]
    messages: dict[str, str]
    data: list[dict[str, Any]]
    cards: list[Any]
    parents: dict[str, list[str]]


@pytest.fixture(autouse=True)
def memory_grows_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish no profile anew because this process grew, and the server below it, by themselves."""
    monkeypatch.setattr("xonar_prefect.tasks.profile_step._PEAK_GROWTH_RATIO", 1000.0)


@pytest.fixture
def left_by(prefect_server: str) -> Callable[[UUID], Left]:
    """Read what a flow run left behind."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        ArtifactFilter,
        ArtifactFilterFlowRunId,
        FlowRunFilter,
        FlowRunFilterId,
    )

    from tests.waiting import until

    def read(flow_run_id: UUID) -> Left:
        run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
        with get_client(sync_client=True) as client:
            # Task runs reach the server as events, a little later than the run's end.
            until(
                lambda: all(
                    task_run.state is not None and task_run.state.is_final()
                    for task_run in client.read_task_runs(flow_run_filter=run)
                )
            )
            task_runs = client.read_task_runs(flow_run_filter=run)
            artifacts = client.read_artifacts(
                artifact_filter=ArtifactFilter(
                    flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id])
                )
            )
            graph = client.request(
                "GET", "/flow_runs/{id}/graph-v2", path_params={"id": str(flow_run_id)}
            ).json()
        labels = {node["id"]: node["label"] for _, node in graph["nodes"]}
        return Left(
            profile_states=sorted(
                t.state.name or "" for t in task_runs if t.state and t.name.startswith("profile ")
            ),
            task_runs={t.name: t.state.name or "" for t in task_runs if t.state},
            messages={t.name: t.state.message or "" for t in task_runs if t.state},
            data=[
                json.loads(a.data) if isinstance(a.data, str) else a.data
                for a in artifacts
                if a.type == "xonar-profile"
            ],
            cards=[a for a in artifacts if a.type == "markdown"],
            parents={
                node["label"]: [labels[parent["id"]] for parent in node["parents"]]
                for _, node in graph["nodes"]
            },
        )

    return read


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunDirectory]:
    """Make this process one that a worker has launched."""

    def place(**values: Any) -> RunDirectory:
        directory = RunDirectory(tmp_path)
        directory.write(Placement(**{"run_id": "r", **values}))
        monkeypatch.setenv(RUN_DIRECTORY_VARIABLE, str(tmp_path))
        return directory

    return place
