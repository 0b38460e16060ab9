from __future__ import annotations

import pytest

from tests.core.building import device, hold, refusal, released, resident, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Device
from xonar_prefect.core.policies import POLICIES

PARALLEL = POLICIES["parallel"]


def test_request_above_every_device_is_refused_with_the_arithmetic() -> None:
    devices = [device(0, memory=8000), device(1, memory=16000, reserved_mib=450)]
    decisions = PARALLEL.decide(
        snapshot([training("bert", request=36000)], devices, headroom_mib=256)
    )
    refused = refusal(decisions, "bert")
    assert refused.code is ReasonCode.NEVER_FITS
    assert refused.reason == (
        "This training needs 36000 MiB on a device, but GPU 1, the largest, offers 15294 MiB even "
        "when it is empty (16000 in all, 450 kept by the driver, headroom 256); lower its memory "
        "request, or submit it to a pool with larger devices."
    )


def test_what_fits_an_unavailable_device_may_fit_later() -> None:
    devices = [device(0, memory=8000), device(1, memory=16000, unavailable="quarantined")]
    decisions = PARALLEL.decide(snapshot([training("a", request=12000)], devices))
    assert hold(decisions, "a").code is ReasonCode.INSUFFICIENT_MEMORY


def test_what_others_use_now_may_come_back() -> None:
    decisions = PARALLEL.decide(snapshot([training("a", request=12000)], [device(used_mib=15000)]))
    held = hold(decisions, "a")
    assert held.code is ReasonCode.INSUFFICIENT_MEMORY
    assert "15000 in use by others" in held.reason


@pytest.mark.parametrize(
    ("models", "gpus", "have"),
    [
        (["V100", "V100"], 3, "2 devices;"),
        (["V100"], 2, "1 device;"),
        (["V100", "V100", "A100"], 3, "3 devices, 2 of one model at most;"),
    ],
)
def test_gang_larger_than_the_worker_is_refused(models: list[str], gpus: int, have: str) -> None:
    devices = [device(index, model=model) for index, model in enumerate(models)]
    decisions = PARALLEL.decide(snapshot([training("gang", gpus=gpus, request=1)], devices))
    refused = refusal(decisions, "gang")
    assert refused.code is ReasonCode.TOO_FEW_DEVICES
    assert (
        f"needs {gpus} devices of one model at once, but this worker has {have}" in refused.reason
    )


def test_gang_is_refused_where_too_few_devices_are_large_enough() -> None:
    devices = [device(0, memory=16000), device(1, memory=8000)]
    decisions = PARALLEL.decide(snapshot([training("gang", gpus=2, request=10000)], devices))
    refused = refusal(decisions, "gang")
    assert refused.code is ReasonCode.NEVER_FITS
    assert "GPU 1 offers 8000 MiB" in refused.reason


def test_nothing_is_refused_while_there_is_no_device() -> None:
    decisions = PARALLEL.decide(snapshot([training("a", request=10**6, gpus=4)], []))
    assert hold(decisions, "a").code is ReasonCode.NO_DEVICE


def test_nothing_of_unknown_size_is_refused() -> None:
    decisions = PARALLEL.decide(snapshot([training("a")], [device()], headroom_mib=16000))
    assert hold(decisions, "a").code is ReasonCode.UNPROFILED_NEEDS_EMPTY_DEVICE


def test_training_that_measures_a_whole_device_is_not_refused_for_its_margin() -> None:
    decisions = PARALLEL.decide(snapshot([training("greedy", peak=15900)], [device()]))
    assert released(decisions) == {"greedy": ("GPU-0",)}


def test_each_training_of_a_kind_is_refused() -> None:
    held = [training(name, request=99999, key="k") for name in "abc"]
    decisions = PARALLEL.decide(snapshot(held, [device()]))
    assert all(refusal(decisions, name).code is ReasonCode.NEVER_FITS for name in "abc")


def slices(count: int) -> list[Device]:
    return [device(index, id=f"MIG-{index}") for index in range(count)]


def test_gang_over_mig_slices_is_refused_because_cuda_shows_only_one() -> None:
    gang = training("gang", gpus=2, request=1000)
    refused = refusal(PARALLEL.decide(snapshot([gang], [device(7), *slices(3)])), "gang")
    assert refused.code is ReasonCode.TOO_FEW_DEVICES
    assert refused.reason == (
        "This training needs 2 devices of one model at once, but this worker has 1 at most that "
        "are no MIG slices, and CUDA shows a process only one slice of several; ask for one "
        "device, or submit it to a pool with whole GPUs."
    )


def test_gang_takes_whole_gpus_beside_slices_and_one_slice_takes_one_training() -> None:
    held = [training("gang", gpus=2, request=1000), training("one", 1.0, request=1000)]
    devices = [*slices(1), device(4), device(5)]
    assert released(PARALLEL.decide(snapshot(held, devices))) == {
        "gang": ("GPU-4", "GPU-5"),
        "one": ("MIG-0",),
    }


def test_a_slice_as_large_as_whole_gpus_hides_none_of_them() -> None:
    devices = [device(0), device(1), device(2, id="MIG-2")]
    decisions = PARALLEL.decide(snapshot([training("gang", gpus=2, request=1000)], devices))
    assert released(decisions) == {"gang": ("GPU-0", "GPU-1")}


def test_gang_that_waits_for_whole_gpus_is_told_that_slices_are_none() -> None:
    devices = [*slices(1), device(4, resident("r", on=(4,))), device(5, unavailable="lost")]
    gang = training("gang", gpus=2, request=1000)
    held = hold(PARALLEL.decide(snapshot([gang], devices)), "gang")
    assert any("is a MIG slice" in each.reason for each in held.alternatives)


@pytest.mark.parametrize("values", [{"gpus": 1, "request": 90000}, {"gpus": 2, "request": 1000}])
def test_nothing_is_refused_for_a_device_that_was_never_read(values: dict[str, int]) -> None:
    unread = device(1, memory=0, model="unknown", unavailable="lost")
    decisions = PARALLEL.decide(snapshot([training("a", **values)], [device(0), unread]))
    assert hold(decisions, "a").code in (
        ReasonCode.INSUFFICIENT_MEMORY,
        ReasonCode.GANG_INCOMPLETE,
    )
    refused = refusal(PARALLEL.decide(snapshot([training("g", gpus=3)], [device(0), unread])), "g")
    assert refused.code is ReasonCode.TOO_FEW_DEVICES
