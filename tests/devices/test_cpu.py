from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.devices.cpu import CpuAccelerators, processor_model
from xonar_prefect.devices.host_memory import HostMemory
from xonar_prefect.errors import InvalidValueError, UnknownDeviceError

MIB = 1024 * 1024


def cores(
    *numbers: int,
    total_mib: int = 8000,
    available_mib: int = 7000,
    used_mib: Mapping[int, int] | None = None,
    available: tuple[int, ...] = (0, 1, 2, 3),
) -> CpuAccelerators:
    used_bytes = {pid: mib * MIB for pid, mib in (used_mib or {}).items()}
    return CpuAccelerators(
        numbers,
        available_cores=lambda: available,
        memory=lambda: HostMemory(total_bytes=total_mib * MIB, available_bytes=available_mib * MIB),
        used_bytes=used_bytes.get,
    )


def test_each_core_is_a_device_with_an_even_share_of_memory() -> None:
    readings = cores(3, 1).read({})
    assert [(r.id, r.index, r.memory_mib) for r in readings] == [
        ("cpu-1", 1, 4000),
        ("cpu-3", 3, 4000),
    ]


def test_memory_of_other_processes_is_spread_evenly() -> None:
    assert [r.used_mib for r in cores(0, 1).read({})] == [500, 500]


def test_memory_of_our_training_counts_on_its_core_and_not_as_foreign() -> None:
    first, second = cores(0, 1, used_mib={71: 300, 72: 100}).read({"cpu-0": [71, 72]})
    assert first.used_by_pid == {71: 300, 72: 100}
    assert first.used_mib == 400 + 300
    assert second.used_by_pid == {}
    assert second.used_mib == 300


def test_a_training_on_two_cores_counts_half_on_each() -> None:
    first, second = cores(0, 1, used_mib={71: 300}).read({"cpu-0": [71], "cpu-1": [71]})
    assert first.used_by_pid == second.used_by_pid == {71: 150}
    assert first.used_mib + second.used_mib == 1000


def test_a_process_named_twice_counts_once() -> None:
    (only,) = cores(0, used_mib={71: 300}).read({"cpu-0": [71, 71]})
    assert only.used_by_pid == {71: 300}


def test_a_process_that_is_gone_is_absent() -> None:
    (only,) = cores(0, used_mib={}).read({"cpu-0": [71]})
    assert only.used_by_pid == {}


def test_ours_may_exceed_what_the_host_counts_as_used_and_nothing_turns_negative() -> None:
    first, second = cores(0, 1, used_mib={71: 2000}).read({"cpu-0": [71]})
    assert first.used_mib == 2000
    assert second.used_mib == 0


@given(
    st.integers(1, 4),
    st.integers(0, 8000),
    st.dictionaries(st.integers(1, 9), st.integers(0, 3000)),
    st.lists(st.lists(st.integers(1, 9)), min_size=4, max_size=4),
)
def test_used_memory_covers_what_is_attributed_and_what_the_host_counts(
    count: int, available_mib: int, used_mib: dict[int, int], pids: list[list[int]]
) -> None:
    processes = {f"cpu-{core}": pids[core] for core in range(count)}
    accelerators = cores(*range(count), available_mib=available_mib, used_mib=used_mib)
    readings = accelerators.read(processes)
    for reading in readings:
        assert reading.used_mib >= sum(reading.used_by_pid.values())
    assert sum(reading.used_mib for reading in readings) >= 8000 - available_mib


def test_a_core_that_was_taken_away_is_unavailable_and_does_not_hide_the_others() -> None:
    first, second = cores(0, 7).read({})
    assert first.unavailable is None
    assert second.unavailable is not None
    assert "core 7 is not among those this process may use" in second.unavailable


def test_a_process_gets_as_many_threads_as_cores_and_no_gpu() -> None:
    assert cores(0, 1, 2).environment(["cpu-0", "cpu-2"], 500) == {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "4",
    }


def test_parameter_servers_get_the_inter_op_threads_they_need_on_one_core_too() -> None:
    assert cores(0).environment(["cpu-0"], None)["TF_NUM_INTEROP_THREADS"] == "4"


def test_a_training_is_pinned_to_its_cores() -> None:
    assert cores(0, 1, 2).processors(["cpu-2", "cpu-0"]) == (0, 2)


def test_a_core_that_is_no_device_is_refused() -> None:
    with pytest.raises(UnknownDeviceError, match=r"no device 'cpu-3' here; the devices are: cpu-0"):
        cores(0).processors(["cpu-3"])


def test_no_core_at_all_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one processor core"):
        cores()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.80GHz", "Intel Xeon 2.80GHz"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "Intel Core i7-8650U 1.90GHz"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763 64-Core"),
    ],
)
def test_the_model_is_the_processors_name_without_trade_marks(
    tmp_path: Path, line: str, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel\t\t: 106\nmodel name\t: {line}\n")
    assert processor_model(tmp_path) == expected


@pytest.mark.parametrize("text", ["processor\t: 0\nCPU part\t: 0xd0c\n", None])
def test_a_processor_without_a_name_is_named_by_its_architecture(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert processor_model(tmp_path) == "aarch64"
