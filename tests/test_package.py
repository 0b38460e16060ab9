"""The package as it is installed: its public names, its layers and what the wheel carries."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import json
import os
import pkgutil
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from importlinter.api import read_configuration

import xonar_prefect

ROOT = Path(__file__).parent.parent


@pytest.fixture
def wheel() -> Path:
    path = os.environ.get("XONAR_TEST_WHEEL")
    if not path:
        pytest.skip("`make test` builds the wheel and sets XONAR_TEST_WHEEL")
    return Path(path)


def test_public_names_are_those_in_all_and_can_be_reached() -> None:
    assert sorted(dir(xonar_prefect)) == sorted(xonar_prefect.__all__)
    for name in xonar_prefect.__all__:
        assert getattr(xonar_prefect, name) is not None


def test_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        xonar_prefect.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("xonar_prefect", {"prefect", "pydantic", "sqlalchemy", "tensorflow", "keras", "torch"}),
        ("xonar_prefect.core", {"prefect", "pydantic", "sqlalchemy", "tensorflow", "keras"}),
        ("xonar_prefect.profiling", {"prefect", "pydantic", "sqlalchemy", "tensorflow", "keras"}),
        ("xonar_prefect.devices", {"prefect", "pydantic", "sqlalchemy", "tensorflow", "pynvml"}),
        ("xonar_prefect.collection", {"tensorflow", "keras", "torch", "jax"}),
        ("xonar_prefect.tasks", {"tensorflow", "keras", "torch", "sqlalchemy.dialects"}),
    ],
)
def test_importing_a_part_loads_nothing_that_it_must_not_need(module: str, heavy: set) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert heavy & set(json.loads(loaded.splitlines()[-1])) == set()


def test_every_module_has_its_place_in_the_layers() -> None:
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    placed = {name.strip(" ()") for layer in layers for name in re.split(r"[:|]", layer)}
    modules = {
        f"xonar_prefect.{each.name}" for each in pkgutil.iter_modules(xonar_prefect.__path__)
    }
    assert modules - placed == {"xonar_prefect._version"}


def test_package_is_typed() -> None:
    assert (importlib.resources.files("xonar_prefect") / "py.typed").is_file()


def test_prefect_finds_the_worker_type_by_the_entry_point() -> None:
    (entry_point,) = importlib.metadata.entry_points(
        group="prefect.collections", name="xonar_prefect"
    )
    entry_point.load()
    from prefect.workers.base import BaseWorker

    assert BaseWorker.get_worker_class_from_type("xonar").type == "xonar"


def test_tests_run_against_the_built_wheel(wheel: Path) -> None:
    origin = importlib.metadata.distribution("xonar-prefect").read_text("direct_url.json")
    assert json.loads(origin or "{}")["url"] == wheel.as_uri()
    assert Path(xonar_prefect.__file__).is_relative_to(sys.prefix)


def test_wheel_carries_the_package_only_and_all_of_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"xonar_prefect", f"xonar_prefect-{xonar_prefect.__version__}.dist-info"}
    assert {
        "xonar_prefect/py.typed",
        "xonar_prefect/store/migrations/env.py",
        "xonar_prefect/store/migrations/versions/0001_create_the_tables.py",
    } <= names
    assert [name for name in names if name.endswith(".pyc")] == []


def test_changelog_has_an_entry_for_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{xonar_prefect.__version__}]" in changelog


def test_pinned_versions_name_no_index_and_satisfy_what_is_installed() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    wrong = [
        pin
        for pin in pins
        if not re.fullmatch(
            r"[a-z0-9][a-z0-9._-]*==[a-z0-9.+!-]+( ; python_full_version (<|>=) '3\.\d+(\.\d+)?')?",
            pin,
        )
    ]
    assert wrong == []
