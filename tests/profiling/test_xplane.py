from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiling.traces import HOST, Plane, TraceBuilder
from xonar_prefect.profiling.recording import Mark
from xonar_prefect.profiling.xplane import StepTimes, TraceError, read_directory, read_steps


@pytest.fixture
def trace() -> TraceBuilder:
    return TraceBuilder()


@pytest.fixture
def host(trace: TraceBuilder) -> Plane:
    """Two steps of ten milliseconds."""
    return trace.plane(HOST).steps([(0.0, 10.0), (10.0, 20.0)])


def milliseconds(step: StepTimes) -> tuple[float, float, float, float]:
    return (
        round(step.wall_seconds * 1000, 6),
        round(step.active_seconds * 1000, 6),
        round(step.communication_seconds * 1000, 6),
        round(step.input_seconds * 1000, 6),
    )


def test_steps_come_in_order_with_gaps_left_out(trace: TraceBuilder) -> None:
    trace.plane(HOST).steps([(500.0, 512.0), (0.0, 9.0)])
    assert [round(step.wall_seconds, 6) for step in read_steps(trace.bytes())] == [0.009, 0.012]


def test_a_name_may_carry_arguments(trace: TraceBuilder) -> None:
    trace.plane(HOST).line("python", [(f"{Mark.STEP.value}#step_num=3#", 0.0, 9.0)])
    assert len(read_steps(trace.bytes())) == 1


def test_the_wait_between_two_steps_is_a_wait_for_input(trace: TraceBuilder, host: Plane) -> None:
    host.line("python", [(Mark.INPUT.value, 6.0, 10.0)])
    host.line("tf_Compute/1", [("a:MatMul", 0.0, 7.0)])
    assert milliseconds(read_steps(trace.bytes())[0]) == (10.0, 7.0, 0.0, 3.0)


def test_overlapping_operations_count_once(trace: TraceBuilder, host: Plane) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 1.0, 4.0), ("b:Relu", 12.0, 13.0)])
    host.line("tf_Compute/2", [("c:Conv2D", 2.0, 6.0)])
    first, second = read_steps(trace.bytes())
    assert (first.active_seconds, second.active_seconds) == (
        pytest.approx(0.005),
        pytest.approx(0.001),
    )


def test_an_operation_across_a_border_counts_in_both_steps(
    trace: TraceBuilder, host: Plane
) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 8.0, 13.0)])
    first, second = read_steps(trace.bytes())
    assert (first.active_seconds, second.active_seconds) == (
        pytest.approx(0.002),
        pytest.approx(0.003),
    )


def test_lines_have_a_start_of_their_own(trace: TraceBuilder, host: Plane) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 12.0, 15.0)], starts_at_ms=11.0)
    first, second = read_steps(trace.bytes())
    assert (first.active_seconds, second.active_seconds) == (0.0, pytest.approx(0.003))


def test_communication_counts_where_no_computation_hides_it(
    trace: TraceBuilder, host: Plane
) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 0.0, 3.0)])
    host.line("collective_ops/1", [("r:CollectiveReduceV2", 2.0, 7.0)])
    assert milliseconds(read_steps(trace.bytes())[0]) == (10.0, 3.0, 4.0, 0.0)


def test_waiting_for_input_counts_where_nothing_else_happens(
    trace: TraceBuilder, host: Plane
) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 0.0, 3.0), ("n:IteratorGetNext", 2.0, 8.0)])
    host.line("tf_data_iterator_get_next/1", [("IteratorGetNextOp::DoCompute", 2.0, 8.0)])
    host.line("collective_ops/1", [("r:CollectiveReduceV2", 6.0, 7.0)])
    assert milliseconds(read_steps(trace.bytes())[0]) == (10.0, 3.0, 1.0, 4.0)


@pytest.mark.parametrize(
    "name",
    [
        "EagerService:Enqueue",
        "f:PyFunc",
        "g:StatefulPartitionedCall",
        "w:StatelessWhile",
        "n:NoOp",
        "v:ReadVariableOp",
        "no operation at all",
        "ThreadpoolListener::Record",
    ],
)
def test_what_only_contains_or_dispatches_is_not_active(
    trace: TraceBuilder, host: Plane, name: str
) -> None:
    host.line("tf_Compute/1", [(name, 0.0, 10.0)])
    assert read_steps(trace.bytes())[0].active_seconds == 0.0


def test_the_input_pipeline_is_no_work_of_the_device(trace: TraceBuilder, host: Plane) -> None:
    host.line("tf_data_iterator/1", [("d:DecodeJpeg", 0.0, 10.0)])
    assert milliseconds(read_steps(trace.bytes())[0]) == (10.0, 0.0, 0.0, 0.0)


def test_on_a_gpu_only_its_streams_count(trace: TraceBuilder, host: Plane) -> None:
    host.line("tf_Compute/1", [("a:MatMul", 0.0, 10.0)])
    gpu = trace.plane("/device:GPU:0")
    gpu.line("Stream #7(compute)", [("sgemm", 1.0, 3.0)])
    gpu.line("Stream #8(compute)", [("sgemm", 2.0, 5.0)])
    for derived in ("XLA Ops", "XLA Modules", "Framework Ops", "Steps"):
        gpu.line(derived, [("everything", 0.0, 20.0)])
    assert [step.active_seconds for step in read_steps(trace.bytes())] == [
        pytest.approx(0.004),
        0.0,
    ]


@pytest.mark.parametrize(
    "kernel",
    ["ncclDevKernel_AllReduce_Sum_f32", "rcclKernel", "ncclKernel_SendRecv", "Memcpy P2P"],
)
def test_communication_kernels_are_not_active(
    trace: TraceBuilder, host: Plane, kernel: str
) -> None:
    trace.plane("/device:GPU:0").line("Stream #9", [(kernel, 0.0, 6.0), ("gemm", 4.0, 8.0)])
    assert milliseconds(read_steps(trace.bytes())[0]) == (10.0, 4.0, 4.0, 0.0)


def test_of_several_gpus_the_busiest_counts(trace: TraceBuilder, host: Plane) -> None:
    trace.plane("/device:GPU:0").line("Stream #1", [("gemm", 0.0, 2.0), ("gemm", 10.0, 12.0)])
    trace.plane("/device:GPU:1").line("Stream #1", [("gemm", 0.0, 3.0), ("gemm", 10.0, 14.0)])
    trace.plane("/device:GPU:2")
    assert [step.active_seconds for step in read_steps(trace.bytes())] == [
        pytest.approx(0.003),
        pytest.approx(0.004),
    ]


def test_a_trace_without_marked_steps_has_none(trace: TraceBuilder) -> None:
    trace.plane(HOST).line("tf_Compute/1", [("a:MatMul", 0.0, 3.0)])
    assert read_steps(trace.bytes()) == ()
    assert read_steps(b"") == ()


def test_a_cut_off_trace_is_an_error_of_ours(trace: TraceBuilder, host: Plane) -> None:
    with pytest.raises(TraceError, match="cut off"):
        read_steps(trace.bytes()[:-5])


def test_a_directory_without_a_trace_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace"):
        read_directory(tmp_path)


def test_the_newest_trace_of_a_directory_is_read(
    tmp_path: Path, host: Plane, trace: TraceBuilder
) -> None:
    for day, content in (("2026_01_01", TraceBuilder().bytes()), ("2026_01_02", trace.bytes())):
        folder = tmp_path / "plugins" / "profile" / day
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(content)
    assert len(read_directory(tmp_path)) == 2
