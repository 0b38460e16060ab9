from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.core.quarantine import Quarantine, QuarantineCause
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.store import Store
from xonar_prefect.worker.orders import Orders


def release(directory: Path, name: str, **changes: object) -> LedgerEntry:
    directory.mkdir()
    values = {
        "run_id": name,
        "name": name,
        "worker": "w",
        "state": SlotState.RUNNING,
        "devices": ("cpu-0",),
        "request_mib": 700,
        "run_directory": str(directory),
        "reserved_at_s": 1.0,
    }
    return LedgerEntry(**{**values, **changes})


@pytest.fixture
def pair(store: Store, tmp_path: Path) -> None:
    store.record(release(tmp_path / "a", "wise-owl"))
    store.record(release(tmp_path / "b", "sly-fox", reserved_at_s=2.0, request_mib=None))
    store.record(release(tmp_path / "c", "old-cat", state=SlotState.ENDED))
    status = Status(phase="training", steps_done=30, steps_total=100, peak_memory_mib=512)
    RunDirectory(tmp_path / "a").write(status)


def test_device_shows_its_trainings_and_their_progress(xonar, pair) -> None:
    words = xonar("gpus").words
    assert "wise-owl 700 MiB 30/100" in words
    assert "sly-fox all -" in words
    assert "old-cat" not in words


def test_json_has_partners_and_progress(xonar, pair) -> None:
    (core,) = xonar("gpus", "--json").json
    assert core["id"] == "cpu-0"
    assert core["memory_mib"] > 0
    first, second = core["trainings"]
    assert first["partners"] == ["sly-fox"]
    assert (first["steps_done"], first["steps_total"], first["peak_memory_mib"]) == (30, 100, 512)
    assert (second["steps_done"], second["request_mib"]) == (None, None)


def test_idle_device_is_shown(xonar) -> None:
    (core,) = xonar("gpus", "--json").json
    assert core["trainings"] == []


def test_no_gpu_where_gpus_are_asked_for_is_said_in_a_sentence(xonar, monkeypatch) -> None:
    monkeypatch.setenv("XONAR_DEVICES", "nvidia")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    ended = xonar("gpus")
    assert ended.status == 1
    assert "No device was found" in ended.errors


# --- slots ---


def slots(xonar) -> list[tuple[str, str | None]]:
    (core,) = xonar("gpus", "--json").json
    return [(slot["state"], slot["reason"]) for slot in core["slots"]]


def test_every_slot_has_a_state(xonar, store: Store, tmp_path: Path) -> None:
    assert slots(xonar) == [("free", None), ("free", None)]
    entry = release(
        tmp_path / "a",
        "wise-owl",
        reason="It is first.",
        host=socket.gethostname(),
        launcher_pid=7,
        launcher_started_ticks=99,
        boot_id="b",
        launched_at_s=2.0,
    )
    store.record(entry)
    assert slots(xonar) == [("running", "It is first."), ("free", None)]
    (core,) = xonar("gpus", "--json").json
    slot = core["slots"][0]
    assert (slot["name"], slot["request_mib"], slot["since_s"]) == ("wise-owl", 700, 2.0)
    assert (slot["pid"], slot["started_ticks"], slot["boot_id"]) == (7, 99, "b")
    assert slot["host"] == socket.gethostname()
    words = xonar("gpus").words
    assert "running for" in words
    assert words.count("free") == 1


def test_a_training_that_has_all_memory_leaves_no_free_slot(xonar, store, tmp_path) -> None:
    store.record(release(tmp_path / "a", "wise-owl", request_mib=None))
    assert [state for state, _ in slots(xonar)] == ["running"]


def test_trainings_of_another_host_are_not_shown(xonar, store, tmp_path) -> None:
    store.record(release(tmp_path / "a", "wise-owl", host="elsewhere"))
    assert slots(xonar) == [("free", None)] * 2


def quarantine(**changes: object) -> Quarantine:
    values = {
        "host": socket.gethostname(),
        "device": "cpu-0",
        "cause": QuarantineCause.FAILS_FAST,
        "reason": "3 trainings failed here",
        "begun_at_s": 1.0,
    }
    return Quarantine(**{**values, **changes})


def test_a_quarantine_is_shown_with_its_reason_until_its_end(xonar, store: Store) -> None:
    store.record_quarantine(quarantine(until_s=4e9))
    reason = "3 trainings failed here (until 2096-10-02 07:06 UTC)"
    assert slots(xonar) == [("quarantined", reason)] * 2
    (core,) = xonar("gpus", "--json").json
    (shown,) = core["quarantines"]
    assert (shown["cause"], shown["begun_at_s"], shown["until_s"]) == ("fails_fast", 1.0, 4e9)
    assert f"cpu-0 takes no training: {reason}." in xonar("gpus").words


def test_what_no_worker_has_ended_yet_but_is_over_is_not_shown(xonar, store: Store) -> None:
    store.record_quarantine(quarantine(until_s=2.0))
    store.record_quarantine(quarantine(cause=QuarantineCause.DEVICE))  # the driver says: fine
    store.record_quarantine(quarantine(host="elsewhere"))
    assert slots(xonar) == [("free", None)] * 2


# --- by hand ---


@pytest.mark.parametrize("name", ["0", "cpu-0", "cpu-", "CPU-0"])
def test_a_device_is_drained_and_released_by_index_id_or_beginning(
    xonar, name: str, home: Path
) -> None:
    ended = xonar("gpus", "drain", name, "--reason", "the fan is broken")
    assert ended.status == 0
    assert "Nothing more is released to cpu-0 until it is released" in ended.words
    (order,) = Orders(home, socket.gethostname()).read().values()
    assert (order.device, order.reason, order.until_s) == ("cpu-0", "the fan is broken", None)
    state, reason = slots(xonar)[0]
    assert state == "quarantined"
    assert (reason or "").endswith(": the fan is broken")
    ended = xonar("gpus", "release", name)
    assert "cpu-0 is released" in ended.words
    assert slots(xonar) == [("free", None)] * 2


@pytest.mark.parametrize(("option", "text"), [("--for", "2h"), ("--until", "2096-10-02 07:06Z")])
def test_a_drain_may_have_an_end(xonar, home: Path, option: str, text: str) -> None:
    begun_s = time.time()
    assert xonar("gpus", "drain", "0", "--reason", "fan", option, text).status == 0
    (order,) = Orders(home, socket.gethostname()).read().values()
    assert order.until_s is not None
    expected_s = begun_s + 7200 if option == "--for" else 4e9
    assert order.until_s == pytest.approx(expected_s, abs=60)


def test_a_drain_without_a_reason_is_wrong_usage(xonar, home: Path) -> None:
    assert xonar("gpus", "drain", "0").status == 2
    ended = xonar("gpus", "drain", "0", "--reason", " ")
    assert (ended.status, "--reason is empty" in ended.errors) == (1, True)
    assert Orders(home, socket.gethostname()).read() == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("drain", "7", "--reason", "fan"), "There is no device '7' here; the devices are: 0 ="),
        (("drain", "", "--reason", "fan"), "There is no device ''"),
        (("drain", "0", "--reason", "fan", "--for", "soon"), "'soon' is no length of time"),
        (("drain", "0", "--reason", "fan", "--until", "2001-01-01"), "has passed"),
        (
            ("drain", "0", "--reason", "fan", "--for", "2h", "--until", "18:00"),
            "Give either `--for` or `--until`, not both.",
        ),
        (("release", "GPU-9"), "There is no device 'GPU-9' here"),
        (("release", "0"), "Nothing keeps trainings off cpu-0"),
    ],
)
def test_mistakes_are_said_in_a_sentence(xonar, arguments: tuple[str, ...], said: str) -> None:
    ended = xonar("gpus", *arguments)
    assert ended.status == (2 if {"--for", "--until"} & set(arguments) else 1)
    assert said in ended.errors


def test_what_is_released_cannot_be_released_again(xonar) -> None:
    xonar("gpus", "drain", "0", "--reason", "fan")
    assert xonar("gpus", "release", "0").status == 0
    ended = xonar("gpus", "release", "0")
    assert (ended.status, "is nothing to release" in ended.errors) == (1, True)


def test_the_beginning_of_several_devices_is_ambiguous(xonar, monkeypatch) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only")
    cores = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setenv("XONAR_CPU_DEVICES", f"{cores[0]},{cores[1]}")
    ended = xonar("gpus", "drain", "cpu", "--reason", "fan")
    assert ended.status == 1
    assert "Several devices begin with 'cpu'" in ended.errors


def test_a_quarantine_that_a_worker_began_is_released_too(xonar, store: Store) -> None:
    store.record_quarantine(quarantine())
    assert xonar("gpus", "release", "0").status == 0
    assert slots(xonar) == [("free", None)] * 2  # also before the worker has noticed


def test_what_does_not_end_by_a_word_is_not_released(xonar, store: Store) -> None:
    store.record_quarantine(
        quarantine(cause=QuarantineCause.PROCESSES_STAY, reason="processes do not end")
    )
    ended = xonar("gpus", "release", "0")
    assert ended.status == 1
    assert "takes no training because of this: processes do not end; mend that" in ended.errors
