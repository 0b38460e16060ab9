"""Fixtures of every suite: a Prefect server for the session, private and quiet."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Before Prefect is imported: no telemetry, and nothing of the developer's own profile.
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ.pop("PREFECT_API_URL", None)
# What its server does beside runs costs processor time and is not on trial. On a busy machine it
# would call runs late that a test has just submitted.
for name in ("EVENT_PERSISTER", "TRIGGERS", "LATE_RUNS"):
    os.environ[f"PREFECT_SERVER_SERVICES_{name}_ENABLED"] = "false"

# What an example takes says how busy the machine is, and nothing about what we promise.
settings.register_profile("xonar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("xonar")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # Prefect leaves the sockets of async flow runs to the garbage collector, which tells of them
    # in whatever test comes next. (A plain `@flow` with a plain `@task` does so.)
    for kind in ("socket.socket", "_SelectorSocketTransport", "_UnixSelectorEventLoop"):
        config.addinivalue_line(
            "filterwarnings",
            f"ignore:Exception ignored in. <{kind}:pytest.PytestUnraisableExceptionWarning",
        )


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """Start one real Prefect server with a database of its own; yields its API address."""
    from prefect.settings import get_current_settings
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=240):
        yield str(get_current_settings().api.url)
