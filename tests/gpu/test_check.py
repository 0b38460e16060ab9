"""The check for a GPU machine, on cores and on the fake library: it must not fail for itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.contracts.accelerators import ids_are_unique_and_the_same_at_every_read
from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import EVERY_DEVICE, FakeGpu, FakeNvml
from tests.gpu import check
from tests.gpu.memory import ON_THE_PROCESSOR, problems
from xonar_prefect.devices.base import DeviceReading
from xonar_prefect.devices.cpu import CpuAccelerators


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with fake_nvml.loaded(tmp_path) as fake:
        yield fake


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "result.json"
    status = check.main(["--seconds", "0.2", "--json", str(file), *arguments])
    return status, json.loads(file.read_text()) if file.exists() else {}


def assert_measured(result: Mapping[str, Any]) -> None:
    assert set(result["promises"].values()) == {None}
    measured = result["measured"]
    assert len(measured["pairs"]) == len(check.PAIRS)
    for pair in measured["pairs"]:
        assert all(0 < fraction <= 1 for fraction in pair["active_fraction"])
        assert all(slowdown > 0 for slowdown in pair["measured_slowdown"])
        assert all(slowdown >= 1 for slowdown in pair["predicted_slowdown"])
    assert [each["asked_active_fraction"] for each in measured["profiles"]] == list(check.FRACTIONS)
    assert all(profile["steps"] >= 10 for profile in measured["profiles"])
    assert [row["taken_mib"] for row in measured["memory"]] == list(ON_THE_PROCESSOR.hold)
    assert measured["cap"]["out_of_memory"]
    assert measured["cap"]["held_mib"] <= ON_THE_PROCESSOR.limit
    assert measured["cap"]["neighbour_steps_meanwhile"] > 0


def test_without_a_gpu_it_says_so_and_ends_well(
    nvml: FakeNvml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.show()
    assert run(tmp_path) == (0, {})
    assert capsys.readouterr().out.startswith("There is no GPU here, so nothing was checked.")


def test_a_broken_driver_is_a_failure_with_its_sentence(
    nvml: FakeNvml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    nvml.show(failures={("nvmlInitWithFlags", EVERY_DEVICE): code})
    assert run(tmp_path) == (1, {})
    assert "The devices cannot be read. The NVIDIA driver and its library do not match" in (
        capsys.readouterr().out
    )


def test_on_cores_everything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = run(tmp_path, "--devices", "cpu")
    assert status == 0
    assert_measured(result)
    assert {each["source"] for each in result["measured"]["profiles"]} == {"cpu-time"}
    shown = capsys.readouterr().out
    assert "kept    readings are ordered by index" in shown
    assert "cpu-time" in shown
    assert "ran out of memory (MemoryError)" in shown


def test_on_a_gpu_everything_is_measured_and_the_memory_comes_back(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    nvml.show(FakeGpu(uuid="GPU-aaaa"), FakeGpu(uuid="GPU-bbbb"))
    status, result = run(tmp_path, "--framework", "processor", "--device", "1")
    assert status == 0
    assert result["device"] == "GPU-bbbb"
    assert_measured(result)
    assert result["measured"]["memory_back_s"] is not None
    assert result["measured"]["used_by_load_mib"] == [None, None]


def test_without_a_framework_only_the_devices_are_checked(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "choose_framework", lambda asked, kind: None)
    nvml.show(FakeGpu(uuid="GPU-aaaa"))
    status, result = run(tmp_path)
    assert status == 0
    assert result["problem"] == "neither PyTorch nor TensorFlow nor JAX is installed"
    assert set(result["promises"].values()) == {None}


def test_a_gpu_that_cannot_be_used_is_a_failure(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.show(FakeGpu(uuid="GPU-aaaa", compute_mode=2))
    status, result = run(tmp_path)
    assert (status, result["problem"]) == (1, "no such device can be used")


def test_a_load_that_does_not_run_is_a_failure(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.show(FakeGpu(uuid="GPU-aaaa"))
    arguments = check.parse(["--json", str(tmp_path / "result.json")])
    arguments.framework = "no-such-framework"
    assert check.check(arguments) == 1
    problem = json.loads((tmp_path / "result.json").read_text())["problem"]
    assert problem == "the load did not run (it ended with exit code 2)"


@pytest.mark.parametrize("seen", [0, 2])
def test_a_load_that_sees_another_number_of_gpus_than_one_is_a_failure(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    started = {"description": "", "gpus_visible": seen, "compute_seconds": 1.0}
    monkeypatch.setattr(check.RunningLoad, "answer", lambda self: started)
    nvml.show(FakeGpu(uuid="GPU-aaaa"))
    status, result = run(tmp_path, "--framework", "processor")
    assert status == 1
    assert result["problem"] == f"the load did not run (it was given one GPU and sees {seen})"


def test_a_broken_promise_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Doubled(CpuAccelerators):
        def read(self, processes: Mapping[str, Sequence[int]]) -> tuple[DeviceReading, ...]:
            return super().read(processes) * 2

    broken = check.broken_promises(Doubled((0,)))
    problem = broken[ids_are_unique_and_the_same_at_every_read.__name__]
    assert problem is not None
    assert "cpu-0" in problem


CAP = {
    "limit_mib": 100,
    "held_mib": 64,
    "out_of_memory": True,
    "neighbour_steps_meanwhile": 5,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"out_of_memory": False}, "did not stop"),
        ({"held_mib": 164}, "164 MiB were taken under a cap of 100"),
        ({"neighbour_steps_meanwhile": 0}, "made no step"),
    ],
)
def test_a_cap_that_does_not_hold_is_a_failure(changes: dict[str, Any], words: str) -> None:
    assert problems(CAP) == []
    (problem,) = problems({**CAP, **changes})
    assert words in problem
