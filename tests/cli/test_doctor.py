from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path

import pytest

from xonar_prefect.cli import checks
from xonar_prefect.cli.checks import (
    Finding,
    Outcome,
    check_host,
    check_quarantines,
    check_store,
    check_tensorflow,
)
from xonar_prefect.settings import load_settings


@pytest.fixture
def tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a module of that name before the real one, for the process that is asked."""

    def stands_in(source: str) -> None:
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "tensorflow.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    return stands_in


def seeing(gpus: int) -> str:
    return (
        "from types import SimpleNamespace\n"
        "__version__ = '2.21.0'\n"
        f"config = SimpleNamespace(list_physical_devices=lambda kind: [kind] * {gpus})\n"
        "print('chatter of the library')\n"
    )


def test_tensorflow_that_sees_the_gpus_is_well(tensorflow) -> None:
    tensorflow(seeing(2))
    assert check_tensorflow(gpus=True) == Finding.ok("TensorFlow", "Version 2.21.0 sees 2 GPUs.")


def test_tensorflow_needs_no_gpu_where_cores_stand_in(tensorflow) -> None:
    tensorflow(seeing(0))
    assert check_tensorflow(gpus=False).outcome is Outcome.OK


def test_tensorflow_blind_for_gpus_has_failed_and_says_what_to_install(tensorflow) -> None:
    tensorflow(seeing(0))
    finding = check_tensorflow(gpus=True)
    assert finding.outcome is Outcome.FAILED
    assert "tensorflow[and-cuda]" in finding.advice


def test_missing_tensorflow_is_a_warning(tensorflow) -> None:
    tensorflow("raise ModuleNotFoundError(\"No module named 'tensorflow'\")")
    finding = check_tensorflow(gpus=True)
    assert finding.outcome is Outcome.WARNING
    assert "not installed" in finding.found


def test_broken_tensorflow_has_failed_with_its_own_words(tensorflow) -> None:
    tensorflow("raise ImportError('libcudart.so.12: cannot open shared object file')")
    finding = check_tensorflow(gpus=True)
    assert finding.outcome is Outcome.FAILED
    assert "libcudart.so.12" in finding.found


def test_tensorflow_that_hangs_has_failed(tensorflow, monkeypatch) -> None:
    tensorflow("import threading; threading.Event().wait()")
    monkeypatch.setattr(checks, "_TENSORFLOW_SECONDS", 0.2)
    finding = check_tensorflow(gpus=True)
    assert finding.outcome is Outcome.FAILED
    assert "did not answer within 0.2 s" in finding.found


def test_store_that_cannot_be_opened_has_failed(tmp_path, monkeypatch) -> None:
    (tmp_path / "store.db").write_text("no database" * 100)
    monkeypatch.setenv("XONAR_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    finding = check_store(load_settings())
    assert finding.outcome is Outcome.FAILED
    assert "not a database" in finding.found


def test_a_disk_without_room_has_failed_with_the_arithmetic(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, least_free_disk_mib=10**12)
    finding = check_host(settings)
    assert finding.outcome is Outcome.FAILED
    assert f"The file system of {tmp_path} has " in finding.found
    assert "XONAR_LEAST_FREE_DISK_MIB" in finding.found


@pytest.mark.parametrize(("least", "outcome"), [(0, Outcome.OK), (10**12, Outcome.WARNING)])
def test_little_shared_memory_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, outcome: Outcome
) -> None:
    monkeypatch.setattr(checks, "_LEAST_SHARED_MIB", least)
    finding = check_host(load_settings(home=tmp_path, least_free_disk_mib=0))
    assert finding.outcome is outcome
    assert "processor threads" in finding.found


def test_doctor_fails_when_something_has_failed_and_still_checks_the_rest(
    xonar, tensorflow
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    tensorflow(seeing(0))
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        ended = xonar("doctor", "--json")
    assert ended.status == 1
    outcomes = {each["check"]: each["outcome"] for each in ended.json}
    assert outcomes.pop("Host") in {"ok", "warning"}  # as much shared memory as there is here
    assert outcomes == {
        "Python": "ok",
        "Prefect server": "failed",
        "Devices": "ok",
        "TensorFlow": "ok",
        "Store": "ok",
        "Quarantine": "ok",
    }


def test_a_drained_device_is_a_warning_with_the_reason(xonar) -> None:
    settings = load_settings(devices="cpu")
    assert check_quarantines(settings)[0].outcome is Outcome.OK
    assert xonar("gpus", "drain", "0", "--reason", "the fan is broken").status == 0
    (finding,) = check_quarantines(settings)
    assert finding.outcome is Outcome.WARNING
    assert "the fan is broken" in finding.found
    assert "xonar gpus release" in finding.advice


@pytest.mark.server
def test_doctor_is_content_with_a_ready_host(xonar, tensorflow, prefect_server) -> None:
    tensorflow(seeing(0))
    name = f"pool-{uuid.uuid4().hex[:8]}"
    xonar("pool", "create", name)
    ended = xonar("doctor")
    assert ended.status == 0
    assert "failed" not in ended.words
    assert f"answers at {prefect_server}" in ended.words
    assert name in ended.words


@pytest.mark.server
def test_doctor_names_every_pool_however_many_there_are(
    xonar, tensorflow, prefect_server, monkeypatch
) -> None:
    monkeypatch.setattr("xonar_prefect.cli.server._PAGE", 2)
    tensorflow(seeing(0))
    names = [f"pool-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for name in names:
        xonar("pool", "create", name)
    words = xonar("doctor").words
    assert [name for name in names if name not in words] == []


@pytest.mark.server
def test_doctor_says_what_to_do_about_the_pool(xonar, tensorflow, prefect_server) -> None:
    tensorflow(seeing(0))
    name = f"pool-{uuid.uuid4().hex[:8]}"
    missing = xonar("doctor", "--pool", name)
    assert missing.status == 1
    assert f"`xonar pool create {name}`" in missing.words
    xonar("pool", "create", name)
    unserved = xonar("doctor", "--pool", name)
    assert unserved.status == 0
    assert f"has no worker online. Start one with `xonar worker start --pool {name}`" in (
        unserved.words
    )


@pytest.mark.server
def test_doctor_says_when_a_worker_was_last_heard_of(xonar, tensorflow, prefect_server) -> None:
    from prefect import get_client

    tensorflow(seeing(0))
    name = f"pool-{uuid.uuid4().hex[:8]}"
    xonar("pool", "create", name)

    async def sign_of_life() -> None:
        async with get_client() as client:
            await client.send_worker_heartbeat(name, "box")

    asyncio.run(sign_of_life())
    words = xonar("doctor", "--pool", name).words
    assert re.search(rf"Pool '{name}' is served by box \(last heard of \d+ s ago\)", words)
