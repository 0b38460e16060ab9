from __future__ import annotations

import asyncio
import uuid

import pytest

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def name() -> str:
    return f"pool-{uuid.uuid4().hex[:8]}"


def test_pool_is_created_with_our_type_and_job_variables(xonar, name) -> None:
    ended = xonar("pool", "create", name, "--json")
    assert (ended.status, ended.json["created"], ended.json["type"]) == (0, True, "xonar")

    async def variables() -> dict[str, object]:
        from prefect import get_client

        async with get_client() as client:
            pool = await client.read_work_pool(name)
            return pool.base_job_template["variables"]["properties"]

    assert {"memory_request_mib", "gpus", "exclusive", "env"} <= set(asyncio.run(variables()))


def test_creating_a_pool_again_changes_nothing_and_succeeds(xonar, name) -> None:
    first = xonar("pool", "create", name, "--json").json
    again = xonar("pool", "create", name)
    assert again.status == 0
    assert "exists already" in again.words
    assert xonar("pool", "create", name, "--json").json == {**first, "created": False}


def test_pool_of_another_type_is_refused_and_left_alone(xonar, name) -> None:
    async def create_process_pool() -> None:
        from prefect import get_client
        from prefect.client.schemas.actions import WorkPoolCreate

        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=name, type="process"))

    asyncio.run(create_process_pool())
    ended = xonar("pool", "create", name)
    assert ended.status == 1
    assert f"Work pool '{name}' is of type 'process', not 'xonar'" in ended.errors
