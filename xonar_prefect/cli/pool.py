"""`xonar pool`: work pools whose trainings share devices."""

from __future__ import annotations

from cyclopts import App

from xonar_prefect.cli.output import AsJson, print_json, say
from xonar_prefect.cli.server import connected, xonar_pool

app = App(name="pool", help="Work pools whose trainings share devices.")


@app.command
async def create(name: str, /, *, json: AsJson = False) -> None:
    """Create a work pool of type xonar; one that exists is left as it is.

    Example: `xonar pool create gpu-box`

    Args:
        name: Name of the pool.
        json: Print JSON.
    """
    from prefect.client.schemas.actions import WorkPoolCreate

    from xonar_prefect.worker.worker import XonarWorker

    async with connected() as client:
        pool = await xonar_pool(client, name)
        created = pool is None
        if pool is None:
            template = XonarWorker.get_default_base_job_template()
            pool = await client.create_work_pool(
                WorkPoolCreate(name=name, type=XonarWorker.type, base_job_template=template)
            )
    if json:
        print_json({"pool": pool.name, "id": str(pool.id), "type": pool.type, "created": created})
        return
    say(f"Work pool {name!r} {'is ready' if created else 'exists already, nothing was changed'}.")
    say(f"Start a worker on every GPU host with: xonar worker start --pool {name}")
