"""Out of memory: told from everything else that frameworks say, and blamed on who took it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xonar_prefect.core.out_of_memory import (
    GROWTH_RATIO,
    Shortage,
    in_one_line,
    is_out_of_memory,
    last_words_of_memory,
    says_out_of_memory,
)


def error(name: str, message: str) -> Exception:
    """Make an error of a class of this name, as a framework that is not installed here would."""
    kind: type[Exception] = type(name, (RuntimeError,), {})
    return kind(message)


SAID = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
    "torch.cuda.OutOfMemoryError: Allocation on device",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cudnn: CUDNN_STATUS_ALLOC_FAILED",
    "failed to allocate 3.93GiB (4219469824 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of",
    "ResourceExhaustedError: OOM when allocating tensor with shape[8192,8192] and type float on",
    "ResourceExhaustedError: {{function_node __wrapped__Mul}} failed to allocate memory [Op:Mul]",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
    "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 'out of memory'",
]
NOT_SAID = [
    "ResourceExhaustedError: /ckpt/model.index; No space left on device",
    "ResourceExhaustedError: Received message larger than max (4194323 vs. 4194304)",
    "java.lang.OutOfMemoryError: Java heap space",
    (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB. The caller indicates "
        "that this is not a failure, but this may mean that there could be performance gains"
    ),
    "OSError: [Errno 28] No space left on device",
    "epoch 7: memory 812 MiB, out of 24576 MiB",
    "ValueError: out of range",
    "",
]


@pytest.mark.parametrize("line", SAID)
def test_what_frameworks_say_of_missing_device_memory_is_recognised(line: str) -> None:
    assert says_out_of_memory(line)


@pytest.mark.parametrize("line", NOT_SAID)
def test_what_only_resembles_it_is_not(line: str) -> None:
    assert not says_out_of_memory(line)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OutOfMemoryError", "Allocation on device"),
        ("ResourceExhaustedError", "OOM when allocating tensor\nwith shape[8192,8192]"),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 10 bytes."),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_errors_are_known_by_class_and_words(name: str, message: str) -> None:
    assert is_out_of_memory(error(name, message))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ResourceExhaustedError", "model.ckpt; No space left on device"),
        ("ValueError", "bad shape"),
        ("MemoryError", ""),  # the host's memory, and its own ending
    ],
)
def test_other_errors_are_not(name: str, message: str) -> None:
    assert not is_out_of_memory(error(name, message))


def test_no_error_is_no_out_of_memory() -> None:
    assert not is_out_of_memory(None)


def test_an_error_that_was_raised_because_of_it_is_recognised_too() -> None:
    ran_out = error("OutOfMemoryError", "CUDA out of memory")
    because, meanwhile = ValueError("the step failed"), ValueError("the clean-up failed")
    because.__cause__ = ran_out
    meanwhile.__context__ = ran_out
    assert is_out_of_memory(because)
    assert is_out_of_memory(meanwhile)


def test_an_error_that_was_dealt_with_and_hidden_is_not() -> None:
    instead = ValueError("something else")
    instead.__context__ = error("OutOfMemoryError", "CUDA out of memory")
    instead.__suppress_context__ = True  # as by `from None`
    assert not is_out_of_memory(instead)


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


def test_an_error_is_told_in_one_line() -> None:
    assert in_one_line(ValueError("two\n  lines")) == "ValueError: two lines"


def test_the_last_complaint_of_an_output_is_found() -> None:
    text = f"epoch 1\n{SAID[0]}\n{SAID[3]}\nbye\n"
    assert last_words_of_memory(text) == SAID[3]
    assert last_words_of_memory("epoch 1\nbye\n") is None


def test_who_had_all_that_was_reserved_for_it_needs_more() -> None:
    shortage = Shortage(request_mib=8000, used_mib=7900, usable_mib=24000, others_mib=10000)
    assert shortage.is_own_fault
    assert shortage.raised_peak_mib == 10000
    assert shortage.sentence == "It was given the 8000 MiB that were reserved for it."


def test_who_was_robbed_by_strangers_is_not_charged() -> None:
    shortage = Shortage(request_mib=8000, used_mib=3000, usable_mib=24000, others_mib=20000)
    assert not shortage.is_own_fault
    assert shortage.raised_peak_mib is None
    assert shortage.sentence == (
        "Others used 20000 MiB of the 24000 MiB there, and 8000 MiB of it was reserved for this "
        "training."
    )


def test_who_was_robbed_by_its_partner_is_not_charged_and_the_partner_is_named() -> None:
    shortage = Shortage(request_mib=8000, usable_mib=24000, others_mib=9000, offender="greedy")
    assert not shortage.is_own_fault
    assert shortage.sentence == "'greedy' beside it used more than was reserved for that."


def test_a_desktop_on_the_device_takes_nothing_from_a_training_that_has_all_of_it() -> None:
    assert Shortage(request_mib=None, usable_mib=24000, others_mib=300).is_own_fault
    assert not Shortage(request_mib=None, usable_mib=24000, others_mib=9000).is_own_fault


def test_where_nothing_is_known_of_the_device_the_training_is_changed() -> None:
    assert Shortage(request_mib=8000, others_mib=9000).is_own_fault
    assert Shortage(request_mib=None).raised_peak_mib is None


sizes = st.integers(min_value=1, max_value=200_000)


@given(request=sizes, used=sizes, usable=sizes, others=st.integers(0, 200_000))
def test_a_raised_peak_grows_but_not_beyond_the_device(
    request: int, used: int, usable: int, others: int
) -> None:
    shortage = Shortage(request_mib=request, used_mib=used, usable_mib=usable, others_mib=others)
    raised = shortage.raised_peak_mib
    if raised is None:
        assert not shortage.is_own_fault
        return
    reached = max(request, used)
    assert raised <= usable
    assert raised >= min(usable, GROWTH_RATIO * reached)
