from __future__ import annotations

import socket
from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from xonar_prefect.cli.demo import private_server as module
from xonar_prefect.cli.demo.home import private_home
from xonar_prefect.cli.demo.private_server import private_server
from xonar_prefect.errors import DemoError


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO())


def test_port_of_somebody_else_is_refused_before_anything_starts(
    tmp_path: Path, console: Console
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, private_home(tmp_path) as home:
        port = other.getsockname()[1]

        with (
            pytest.raises(DemoError, match=f"Port {port} cannot be used"),
            private_server(home, console, port=port),
        ):
            pass

        assert not (tmp_path / "server.log").exists()


def test_server_that_does_not_start_is_reported_with_its_last_words(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "executable", "false")

    with (
        private_home(tmp_path) as home,
        pytest.raises(DemoError, match="server of the demonstration ended with exit code 1"),
        private_server(home, console),
    ):
        pass


def test_server_answers_in_the_block_and_its_pages_call_it(
    tmp_path: Path, console: Console
) -> None:
    with private_home(tmp_path) as home:
        with private_server(home, console) as server:
            pages = server.api_url.removesuffix("/api")
            with httpx.Client(trust_env=False, timeout=60) as client:
                health = client.get(f"{server.api_url}/health")
                settings = client.get(f"{pages}/ui-settings")
        assert not server.child.alive

    assert health.json() is True
    assert settings.json()["api_url"] == server.api_url
    assert "Starting a private Prefect server" in console.file.getvalue()  # type: ignore[attr-defined]
