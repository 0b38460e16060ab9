"""A trained flow is deployed, loaded and launched like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.exceptions import ScriptError
from prefect.flows import load_flow_from_entrypoint

SOURCE = dedent(
    """
    from prefect import flow
    from xonar_prefect import steps, xonar_task
    {imports}

    @xonar_task(profile_by=["size"])
    @flow(name="nightly")
    def train(size: int = 20, seed: int = 1) -> int:
        return sum(1 for _ in steps(range(size)))
    """
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(SOURCE.format(imports=""))
    return path


def test_it_is_loaded_from_its_entry_point(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Prefect names an entry point by its module, but by its file where that name is taken.
    monkeypatch.setitem(sys.modules, "training", ModuleType("training"))
    loaded: Flow[Any, Any] = load_flow_from_entrypoint(f"{script}:train")
    assert (loaded.name, loaded.fn.__name__) == ("nightly", "train")
    assert list(loaded.parameters.properties) == ["size", "seed"]
    assert loaded._entrypoint == f"{script}:train"


def test_it_has_the_version_of_its_file(script: Path) -> None:
    undecorated = script.with_name("plain.py")
    undecorated.write_text(script.read_text().replace('@xonar_task(profile_by=["size"])', ""))
    versions = [
        load_flow_from_entrypoint(f"{path}:train").version for path in (script, undecorated)
    ]
    assert None not in versions
    script.write_text(script.read_text() + "\n# changed\n")
    assert load_flow_from_entrypoint(f"{script}:train").version != versions[0]


def test_it_is_loaded_where_the_framework_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "training.py"
    path.write_text(SOURCE.format(imports="import a_framework_that_is_not_here"))
    loaded: Flow[Any, Any] = load_flow_from_entrypoint(f"{path}:train")
    assert isinstance(loaded, Flow)
    assert loaded.name == "nightly"


def test_it_is_loaded_from_a_source(script: Path) -> None:
    loaded = flow.from_source(source=str(script.parent), entrypoint="training.py:train")
    assert isinstance(loaded, Flow)
    assert loaded.name == "nightly"


def test_a_flow_over_a_training_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        dedent(
            """
            from prefect import flow
            from xonar_prefect import xonar_task

            @flow
            @xonar_task
            def train(): ...
            """
        )
    )
    with pytest.raises(ScriptError) as error:
        load_flow_from_entrypoint(f"{path}:train")
    assert "swap the two" in str(error.value.user_exc)


@pytest.mark.server
def test_it_is_deployed_and_its_run_is_measured(prefect_server: str, script: Path) -> None:
    loaded = flow.from_source(source=str(script.parent), entrypoint="training.py:train")
    assert isinstance(loaded, Flow)
    with get_client(sync_client=True) as client:
        client.request("POST", "/work_pools/", json={"name": "a-pool", "type": "process"})
        deployment_id = loaded.deploy(name="d", work_pool_name="a-pool", build=False, push=False)
        assert isinstance(deployment_id, UUID)
        deployment = client.read_deployment(deployment_id)
        assert deployment.entrypoint == "training.py:train"
        assert deployment.parameter_openapi_schema is not None
        run = client.create_flow_run_from_deployment(deployment_id, parameters={"size": 30})
    subprocess.run(
        [sys.executable, "-m", "prefect", "flow-run", "execute", str(run.id)],
        env=_environment(prefect_server),
        check=True,
        capture_output=True,
    )
    # Of this run: the server is that of all tests, and tells of 200 artifacts at most.
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=of_run)
    (data,) = [a.data for a in artifacts if a.type == "xonar-profile"]
    assert isinstance(data, dict)
    # What the worker sees: the run's own parameters, over the defaults of the deployment.
    assert data["parameters"] == {"size": 30, "seed": 1}
    assert data["recipe"]["profile_by"] == ["size"]


def _environment(api_url: str) -> dict[str, str]:
    import os

    return {**os.environ, "PREFECT_API_URL": api_url}
