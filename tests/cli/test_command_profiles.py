"""What `xonar profile --json` has written is taken in by `xonar profiles import`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.conftest import Pool, Xonar
from xonar_prefect.cli.profile_card import measured
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.command import CommandProfile
from xonar_prefect.store import Store

OF_COMMAND = Profile(
    key="command",
    device_model="V100",
    active_fraction=0.6,
    active_fraction_interval=(0.5, 0.7),
    step_seconds=0.02,
    peak_memory_mib=900,
    steps=14,
    framework="torch 2",
    measured_at_s=1000.0,
)


def written(tmp_path: Path, name: str = "mlp.json", **changes: Any) -> str:
    result = CommandProfile(exit_code=0, profile=OF_COMMAND, processes=1)
    values = json.loads(measured(result, ["python", "train.py", "--epochs", "2"]))
    path = tmp_path / name
    path.write_text(json.dumps({**values, **changes}))
    return str(path)


def test_a_profile_of_a_command_is_taken_in_under_the_files_name(
    xonar: Xonar, store: Store, tmp_path: Path
) -> None:
    ended = xonar("profiles", "import", written(tmp_path))
    assert ended.status == 0
    assert "1 profile was taken in" in ended.output
    assert "`xonar profiles show mlp`" in ended.words
    (known,) = store.profiles()
    assert known.profile.active_fraction_interval == (0.5, 0.7)
    assert (known.profile.key, known.profile.device_model) == ("mlp", "V100")
    assert (known.profile.steps, known.published_at_s) == (14, 1000.0)
    assert known.recipe.task == "python train.py --epochs 2"


def test_that_a_command_failed_is_said_of_its_profile(xonar: Xonar, tmp_path: Path) -> None:
    ended = xonar("profiles", "import", written(tmp_path, exit_code=1))
    assert ended.status == 0
    assert "Its command ended with exit code 1" in ended.words
    assert "exit code" not in xonar("profiles", "import", written(tmp_path)).words


def test_what_profile_writes_is_what_import_reads_and_simulate_uses(
    xonar: Xonar, tmp_path: Path
) -> None:
    busy = "import time\nwhile time.process_time() < 1: pass"
    target = str(tmp_path / "busy.json")
    assert xonar("profile", "--json", target, "--", sys.executable, "-c", busy).status == 0
    assert xonar("profiles", "import", target).status == 0
    assert xonar("profiles", "export", str(tmp_path / "all.csv")).status == 0
    (tmp_path / "trace.csv").write_text(
        "submit_s,training,solo_duration_s,gpus\n0,busy,100,1\n0,busy,100,1\n"
    )
    ended = xonar(
        *("simulate", "--profiles", str(tmp_path / "all.csv")),
        *("--trace", str(tmp_path / "trace.csv"), "--json"),
    )
    assert ended.status == 0


def test_a_later_profile_of_the_same_command_takes_its_place(
    xonar: Xonar, store: Store, tmp_path: Path
) -> None:
    assert xonar("profiles", "import", written(tmp_path)).status == 0
    later = written(tmp_path, step_seconds=0.03, measured_at_s=2000.0)
    assert "1 profile was taken in" in xonar("profiles", "import", later).output
    assert store.profiles_for("mlp")["V100"].step_seconds == 0.03
    assert "1 profile was left out" in xonar("profiles", "import", later).output


def test_the_device_model_may_be_said_and_must_be_where_the_file_does_not(
    xonar: Xonar, store: Store, tmp_path: Path
) -> None:
    nameless = written(tmp_path, device_model=None)
    ended = xonar("profiles", "import", nameless)
    assert ended.status == 2
    assert "--device-model MODEL, as `xonar gpus` names it" in ended.errors
    assert xonar("profiles", "import", nameless, "--device-model", "A100").status == 0
    assert set(store.profiles_for("mlp")) == {"A100"}


@pytest.mark.parametrize(
    ("device_model", "device", "expected"),
    [
        ("cpu", "1 processor core", "CPU core ("),
        ("cpu", "2 processor cores", "2 processor cores ("),
        ("unknown", None, None),
        ("V100", "V100", "V100"),
    ],
)
def test_the_device_model_is_that_of_a_worker(
    device_model: str, device: str | None, expected: str | None
) -> None:
    profile = Profile(key="command", device_model=device_model, device=device)
    result = CommandProfile(exit_code=0, profile=profile, processes=1)
    found = json.loads(measured(result, ["train"]))["device_model"]
    assert found is None if expected is None else found.startswith(expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (dict.fromkeys(("active_fraction", "step_seconds", "peak_memory_mib")), "no figures"),
        ({"active_fraction": 2}, "is no profile as `xonar profile --json` writes it"),
        ({"steps": "many"}, "is no profile as `xonar profile --json` writes it"),
    ],
)
def test_a_damaged_file_is_named(
    xonar: Xonar, store: Store, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    ended = xonar("profiles", "import", written(tmp_path, **changes))
    assert ended.status == 1
    assert complaint in ended.errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--task", "train"), "need --deployment"),
        (("--deployment", "nightly"), "name it as FLOW/DEPLOYMENT"),
        (("--deployment", "a/b", "--param", "epochs"), "write it as NAME=VALUE"),
    ],
)
def test_options_that_say_too_little_are_named(
    xonar: Xonar, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ended = xonar("profiles", "import", written(tmp_path), *arguments)
    assert ended.status == 2
    assert complaint in ended.errors


def test_an_export_knows_what_it_is_of(xonar: Xonar, store: Store, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text("[]")
    ended = xonar("profiles", "import", str(tmp_path / "all.json"), "--device-model", "V100")
    assert ended.status == 2
    assert "are for a file of `xonar profile --json`" in ended.errors


@pytest.fixture
def deployed(pool: Pool) -> str:
    """Give the deployment two parameters, one of them with a value of its own."""
    schema = {"properties": {"epochs": {"default": 1}, "size": {"default": 8}}}

    async def deploy() -> str:
        from prefect import flow, get_client

        async with get_client() as client:
            flow_id = await client.create_flow(flow(lambda: None, name="nightly"))
            await client.create_deployment(
                flow_id,
                pool.name,
                work_pool_name=pool.name,
                entrypoint="nightly.py:nightly",
                parameters={"size": 16},
                parameter_openapi_schema=schema,
                enforce_parameter_schema=False,
            )
            return f"nightly/{pool.name}"

    return anyio.run(deploy)


@pytest.mark.server
@pytest.mark.usefixtures("prefect_server")
class TestDeployment:
    def test_its_runs_are_known_before_the_first(
        self, xonar: Xonar, store: Store, deployed: str, tmp_path: Path
    ) -> None:
        ended = xonar(
            *("profiles", "import", written(tmp_path), "--deployment", deployed),
            *("--task", "train", "--param", "epochs=2"),
        )
        assert ended.status == 0
        (recipe,) = store.recipes_for("nightly", "nightly.py:nightly")
        key = recipe.key_for({"epochs": 2, "size": 16}, 1)
        assert recipe.task == "train"
        assert store.profiles_for(key)["V100"].step_seconds == 0.02

    def test_the_recipe_of_its_task_is_that_of_its_runs(
        self, xonar: Xonar, store: Store, deployed: str, tmp_path: Path
    ) -> None:
        known = Recipe(
            flow="nightly", entrypoint="nightly.py:nightly", task="train", profile_by=("size",)
        )
        other = Profile(key="other", device_model="V100", code_version="v1", steps=9)
        store.ingest_profile("a", other, known, 1.0)
        arguments = ("profiles", "import", written(tmp_path), "--deployment", deployed)
        assert xonar(*arguments).status == 0
        assert "V100" in store.profiles_for(known.key_for({"size": 16}, 1))
        ended = xonar(*arguments, "--task", "trian")
        assert ended.status == 2
        assert "the training tasks of the flow 'nightly' are: train" in ended.errors

    def test_what_is_missing_is_named(self, xonar: Xonar, deployed: str, tmp_path: Path) -> None:
        arguments = ("profiles", "import", written(tmp_path), "--deployment", deployed)
        assert "name it with --task" in xonar(*arguments).errors
        ended = xonar(*arguments, "--task", "train", "--param", "epoch=2")
        assert "its parameters are: epochs, size" in ended.errors
        nowhere = (*arguments[:-1], "nightly/nowhere")
        assert "There is no deployment 'nightly/nowhere'" in xonar(*nowhere).errors
