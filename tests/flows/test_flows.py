from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.flows.conftest import FLOWS, RunPython
from xonar_prefect.cli.demo.trainings import KINDS

_NAMES = sorted(kind.flow for kind in KINDS)


def test_flows_load_without_tensorflow(run_python: RunPython) -> None:
    ended = run_python(
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'sklearn'): sys.modules[name] = None\n"
        "from prefect.flows import load_flow_from_entrypoint as load\n"
        f"print([load(f'{FLOWS}/{{n}}.py:{{n}}', use_placeholder_flow=False).name"
        f" for n in {_NAMES!r}])\n"
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str([name.replace("_", "-") for name in _NAMES])


def test_number_of_epochs_and_seed_shape_no_profile(run_python: RunPython) -> None:
    ended = run_python(
        "import importlib, inspect, json\n"
        "from prefect.flows import load_flow_from_entrypoint as load\n"
        "found = {}\n"
        f"for name in {_NAMES!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    parameters = list(inspect.signature(getattr(module, name).fn).parameters)\n"
        "    found[name] = [parameters, list(module.train.profile_by)]\n"
        "print(json.dumps(found))\n"
    )

    assert ended.returncode == 0, ended.stderr
    for parameters, profile_by in json.loads(ended.stdout).values():
        assert set(profile_by) == set(parameters) - {"epochs", "seed"}


def test_project_file_deploys_every_flow_and_names_no_place() -> None:
    text = (FLOWS / "prefect.yaml").read_text(encoding="utf-8")
    deployments = yaml.safe_load(text)["deployments"]

    assert {each["entrypoint"]: each["name"] for each in deployments} == {
        f"{kind.flow}.py:{kind.flow}": kind.deployment for kind in KINDS
    }
    assert {each["work_pool"]["name"] for each in deployments} == {"xonar"}
    assert not re.search(r"[ :\"'](/|~)", text)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("flow", "arguments", "least_accuracy"),
    [
        ("digits_cnn", {"epochs": 1, "batch_size": 64, "filters": 8}, 0.3),
        ("digits_from_store", {"epochs": 1, "batch_size": 64, "megabytes_per_second": 500.0}, 0.3),
        (
            "digits_quick",
            {"epochs": 1, "batch_size": 64, "units": 64, "megabytes_per_second": 500.0},
            0.3,
        ),
        ("digits_distributed", {"epochs": 1, "batch_size": 64, "filters": 8}, 0.3),
    ],
)
def test_one_epoch_already_learns_something(
    run_python: RunPython, flow: str, arguments: dict[str, float], least_accuracy: float
) -> None:
    pytest.importorskip("tensorflow")

    ended = run_python(f"import {flow}; print({flow}.train.fn(seed=0, **{arguments!r}))")

    assert ended.returncode == 0, ended.stderr
    assert least_accuracy < float(ended.stdout.splitlines()[-1]) <= 1.0  # guessing gives 0.1
