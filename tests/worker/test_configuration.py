"""Job variables: a readable form, and one sentence about every mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from xonar_prefect.errors import JobVariableError
from xonar_prefect.worker.configuration import (
    XonarJobConfiguration,
    XonarVariables,
    checked_variables,
    takes_all_memory,
)
from xonar_prefect.worker.worker import XonarWorker

TEMPLATE = XonarWorker.get_default_base_job_template()
PROPERTIES: dict[str, Any] = TEMPLATE["variables"]["properties"]


def test_every_field_of_the_form_has_a_place_and_a_description() -> None:
    assert sorted(field["position"] for field in PROPERTIES.values()) == list(
        range(len(PROPERTIES))
    )
    assert [name for name, field in PROPERTIES.items() if not field.get("description")] == []


def test_no_field_of_the_form_is_a_choice_between_a_value_and_nothing() -> None:
    assert [name for name, field in PROPERTIES.items() if "anyOf" in field] == []
    assert [name for name, field in PROPERTIES.items() if field.get("default", ...) is None] == []


def test_every_placeholder_of_the_job_is_a_variable() -> None:
    text = str(TEMPLATE["job_configuration"])
    assert set(re.findall(r"{{\s*(\w+)\s*}}", text)) == set(PROPERTIES)


def test_the_template_asks_for_what_the_issue_promises() -> None:
    assert {"memory_request_mib", "gpus", "exclusive", "env", "working_dir", "command"} <= set(
        PROPERTIES
    )


@pytest.mark.server
async def test_the_template_makes_a_job_configuration(prefect_server: str) -> None:
    configuration = await XonarJobConfiguration.from_template_and_values(
        TEMPLATE, {"gpus": 2, "memory_request_mib": 512, "working_dir": "/data"}
    )
    assert (configuration.gpus, configuration.memory_request_mib) == (2, 512)
    assert configuration.working_dir == Path("/data")
    assert not configuration.exclusive


def test_defaults_hold_where_nothing_is_said() -> None:
    assert checked_variables(TEMPLATE, {}) == XonarVariables()


def test_a_default_of_the_pool_holds_and_a_deployment_overrides_it() -> None:
    template = {"variables": {"properties": {"gpus": {"default": 2}}}}
    assert checked_variables(template, {}).gpus == 2
    assert checked_variables(template, {"gpus": 1}).gpus == 1


def test_single_entries_of_the_environment_are_known() -> None:
    checked_variables(TEMPLATE, {"env.BATCH": "8", "env": {"A": "b"}})


def test_a_variable_that_the_pool_added_is_known() -> None:
    template = {"variables": {"properties": {**PROPERTIES, "project": {"type": "string"}}}}
    checked_variables(template, {"project": "digits"})


def test_a_misspelt_variable_is_named_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(JobVariableError) as error:
        checked_variables(TEMPLATE, {"memory_request_mb": 900})
    assert str(error.value) == (
        "There is no job variable 'memory_request_mb'; did you mean 'memory_request_mib'?"
    )


def test_a_variable_like_no_other_is_answered_with_those_that_exist() -> None:
    with pytest.raises(JobVariableError, match=r"'zzz'; known are .*gpus.*memory_request_mib"):
        checked_variables(TEMPLATE, {"zzz": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpus", "many"), ("memory_request_mib", 0), ("exclusive", "perhaps")],
)
def test_a_wrong_value_is_named_with_what_is_wrong(name: str, value: object) -> None:
    with pytest.raises(JobVariableError) as error:
        checked_variables(TEMPLATE, {name: value})
    assert str(error.value).startswith(f"Job variable {name!r} is {value!r}: ")
    assert str(error.value).endswith("; correct it in the deployment or run.")


@pytest.mark.parametrize(
    ("name", "value", "must_be"),
    [
        ("gpus", -1, "a whole number of 0 or more"),
        ("host_memory_mib", "lots", "a whole number of 1 or more"),
        ("memory_elastic", "perhaps", "true or false"),
        ("env", "A=b", "names with texts"),
    ],
)
def test_a_wrong_value_is_answered_with_what_it_must_be(
    name: str, value: object, must_be: str
) -> None:
    with pytest.raises(JobVariableError) as error:
        checked_variables(TEMPLATE, {name: value})
    assert str(error.value) == (
        f"Job variable {name!r} is {value!r}: it must be {must_be}; correct it in the deployment "
        "or run."
    )


@pytest.mark.parametrize(
    ("environment", "takes_all"),
    [
        ({}, False),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, True),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, False),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": None}, False),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "True"}, True),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, False),
    ],
)
def test_a_job_that_has_its_framework_take_the_whole_gpu_is_known_by_its_environment(
    environment: dict[str, str | None], takes_all: bool
) -> None:
    assert takes_all_memory(environment) is takes_all


def test_the_form_says_what_the_memory_request_does_and_what_it_limits() -> None:
    words = PROPERTIES["memory_request_mib"]["description"]
    assert PROPERTIES["memory_request_mib"]["title"] == "GPU memory request (MiB)"
    assert "reserve" in words
    assert "limit" in words
