"""All commands in one application; none of their modules imports anything heavy."""

from __future__ import annotations

from cyclopts import App, Parameter

from xonar_prefect import __version__
from xonar_prefect.cli import doctor, gpus, pool, profile, profiles, queue, worker
from xonar_prefect.cli.demo.command import demo
from xonar_prefect.cli.simulate.command import simulate


def application() -> App:
    """Put the command line together."""
    app = App(
        name="xonar",
        help="Let deep-learning trainings share GPUs safely and well, from Prefect.",
        version=__version__,
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    app.command(demo)
    app.command(pool.app)
    app.command(worker.app)
    app.command(queue.queue)
    app.command(gpus.app)
    app.command(profile.profile)
    app.command(profiles.app)
    app.command(simulate)
    app.command(doctor.doctor)
    return app
