from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.building import MODEL, device, profile, resident, training
from xonar_prefect.core import memory
from xonar_prefect.core.memory import Need
from xonar_prefect.core.models import Limits, Training

LIMITS = Limits(headroom_mib=256, margin_ratio=0.10, margin_mib=64)


@pytest.mark.parametrize(
    ("declared", "peak", "expected"),
    [
        pytest.param(None, None, None, id="unknown is never zero"),
        pytest.param(None, 4000, 4400, id="a tenth on top of the measured peak"),
        pytest.param(None, 4001, 4402, id="the margin is rounded up"),
        pytest.param(None, 100, 164, id="but at least the least margin"),
        pytest.param(6000, None, 6000, id="declared"),
        pytest.param(6000, 4000, 6000, id="the owner knows of growth"),
        pytest.param(3000, 4000, 4400, id="never below what was measured"),
    ],
)
def test_request_is_the_larger_of_declared_and_measured(
    declared: int | None, peak: int | None, expected: int | None
) -> None:
    assert (
        memory.request_mib(training("a", request=declared, peak=peak), "V100", LIMITS) == expected
    )


def test_profile_of_another_device_model_is_no_measurement() -> None:
    assert memory.request_mib(training("a", peak=4000), "A100", LIMITS) is None


def test_available_is_what_reserved_headroom_others_and_residents_leave() -> None:
    gpu = device(
        0,
        resident("grown", 1000, used=1500),
        resident("small", 2000, used=100),
        memory=16000,
        reserved_mib=450,
        used_mib=1500 + 100 + 700,
    )
    assert memory.foreign_mib(gpu) == 700
    assert memory.available_mib(gpu, LIMITS) == 16000 - 450 - 256 - 700 - 1500 - 2000


def test_use_that_cannot_be_attributed_counts_as_foreign() -> None:
    gpu = device(0, resident("a", 1000, used=0), used_mib=900)
    assert memory.available_mib(gpu, Limits()) == 16000 - 900 - 1000


def test_residents_seen_to_use_more_than_the_device_leave_no_negative_foreign_use() -> None:
    assert memory.foreign_mib(device(0, resident("a", 1000, used=1500), used_mib=1400)) == 0


def test_nothing_is_available_beside_a_resident_of_unknown_request() -> None:
    assert memory.available_mib(device(0, resident("a", None)), LIMITS) == 0


def test_overcommitted_device_has_nothing_available() -> None:
    gpu = device(0, resident("a", 9000), memory=16000, used_mib=12000)
    assert memory.available_mib(gpu, LIMITS) == 0


@given(
    total=st.integers(1, 100_000),
    requests=st.lists(st.integers(1, 50_000), max_size=4),
    used=st.integers(0, 120_000),
)
def test_what_is_available_never_exceeds_what_is_left(
    total: int, requests: list[int], used: int
) -> None:
    residents = [resident(f"t{i}", request) for i, request in enumerate(requests)]
    gpu = device(0, *residents, memory=total, used_mib=used)
    available = memory.available_mib(gpu, LIMITS)
    assert 0 <= available <= max(0, total - 256 - sum(requests) - used)


def test_twenty_four_small_requests_are_not_admitted_by_rounding() -> None:
    limits = Limits(max_trainings_per_gpu=24)
    residents = [resident(f"t{i}", 2000) for i in range(23)]
    gpu = device(0, *residents, memory=46068)
    assert memory.available_mib(gpu, limits) == 68


def test_measured_peak_that_only_the_margin_keeps_out_gets_the_whole_device() -> None:
    need = memory.need_on(training("greedy", peak=15900), device(memory=16000), LIMITS)
    assert need == Need(None, possible=True, known=True)


def test_declared_request_above_the_empty_device_is_impossible() -> None:
    assert not memory.need_on(training("a", request=15800), device(memory=16000), LIMITS).possible


def test_peak_above_the_physical_device_is_impossible() -> None:
    assert not memory.need_on(training("a", peak=16001), device(memory=16000), LIMITS).possible


def test_unknown_peak_needs_an_empty_device_that_others_have_not_filled() -> None:
    unknown = Need(None, known=False)
    empty = device(memory=16000)
    assert memory.fits(unknown, empty, 16000, Limits())
    assert memory.fits(unknown, empty, 4000, Limits())
    assert not memory.fits(unknown, empty, 3999, Limits())
    assert not memory.fits(unknown, device(0, resident("a", 1000)), 15000, Limits())


def test_account_names_everybody_who_has_a_part() -> None:
    gpu = device(1, resident("cnn", 9216), memory=49152, used_mib=8192, reserved_mib=500)
    assert memory.account(gpu, Limits(headroom_mib=1024)) == (
        "GPU 1 has 30220 MiB available of 49152 MiB (8192 in use by others, "
        "9216 reserved for 'cnn', 500 kept by the driver, headroom 1024)"
    )


def test_account_shows_growth_above_the_request_and_whole_devices() -> None:
    assert "1500 used by 'a'" in memory.account(
        device(0, resident("a", 1000, used=1500), used_mib=1500), LIMITS
    )
    assert "all of it reserved for 'a'" in memory.account(device(0, resident("a", None)), LIMITS)


def test_shortage_shows_the_arithmetic() -> None:
    gpu = device(1, resident("cnn", 9216), memory=49152, used_mib=8192)
    assert memory.shortage(Need(36000), gpu, Limits(headroom_mib=1024), "'bert'") == (
        "GPU 1 has 30720 MiB available of 49152 MiB (8192 in use by others, "
        "9216 reserved for 'cnn', headroom 1024), but 'bert' needs 36000 MiB."
    )


@pytest.mark.parametrize(
    ("need", "gpu", "expected"),
    [
        (Need(20000, possible=False), device(), "offers 15744 MiB at most, even when it is empty"),
        (Need(None), device(0, resident("b", 100)), "needs all that an empty device has"),
        (Need(None, known=False), device(0, resident("b", 100)), "so it needs an empty device"),
        (Need(None, known=False), device(used_mib=15000), "so it needs at least 3936 MiB"),
    ],
)
def test_shortage_says_what_would_be_needed(need: Need, gpu: object, expected: str) -> None:
    sentence = memory.shortage(need, gpu, LIMITS, "this training")  # type: ignore[arg-type]
    assert expected in sentence
    assert sentence.endswith(".")


# ---- headroom, elastic and preallocating trainings ----


@pytest.mark.parametrize(("total", "expected"), [(16000, 256), (25600, 256), (80000, 800)])
def test_headroom_is_the_larger_of_a_share_and_a_least(total: int, expected: int) -> None:
    limits = Limits(headroom_mib=256, headroom_ratio=0.01)
    gpu = device(memory=total, reserved_mib=450)
    assert memory.headroom_mib(gpu, limits) == expected
    assert memory.capacity_mib(gpu, limits) == total - 450 - expected
    assert f"headroom {expected}" in memory.account(gpu, limits)


@pytest.mark.parametrize("total", [16000, 48000])
def test_the_same_request_in_mib_holds_on_cards_of_every_size(total: int) -> None:
    who = training("a", request=9000)
    gpu = device(0, resident("r", 9000), memory=total)
    fits = memory.fits(
        memory.need_on(who, gpu, LIMITS), gpu, memory.available_mib(gpu, LIMITS), LIMITS
    )
    assert fits == (total == 48000)


def test_what_an_elastic_training_used_says_nothing_about_its_need() -> None:
    elastic = training("a", peak=4000, memory_elastic=True)
    need = memory.need_on(elastic, device(), LIMITS)
    assert (need.mib, need.possible, need.known) == (None, True, True)
    capped = training("a", peak=4000, request=2000, memory_elastic=True)
    assert memory.need_on(capped, device(), LIMITS) == Need(2000)


def test_an_elastic_training_says_why_it_must_be_alone() -> None:
    gpu = device(0, resident("r", 100))
    elastic = training("a", memory_elastic=True)
    sentence = memory.shortage(memory.need_on(elastic, gpu, LIMITS), gpu, LIMITS, "this training")
    assert sentence.endswith(
        "this training needs all that an empty device has: it takes what memory it finds and "
        "declares no memory request."
    )


def held(peak: int, held_mib: int | None) -> Training:
    seen = replace(profile("greedy", peak=peak), held_memory_mib=held_mib)
    return replace(training("greedy"), profiles={MODEL: seen})


@pytest.mark.parametrize(
    ("peak", "held_mib", "alone"),
    [
        pytest.param(2100, 15900, True, id="took the card and used little of it"),
        pytest.param(2100, 2400, False, id="seen to take what it needs"),
        pytest.param(2100, None, False, id="not seen"),
        pytest.param(9000, 15900, False, id="used more than half of what it took"),
        pytest.param(2100, 12000, True, id="took three quarters, as JAX does"),
        pytest.param(2100, 11199, False, id="not most of the card"),
    ],
)
def test_a_training_seen_to_preallocate_has_the_device_to_itself(
    peak: int, held_mib: int | None, alone: bool
) -> None:
    need = memory.need_on(held(peak, held_mib), device(memory=16000), LIMITS)
    assert (need.mib is None) == alone
    assert need.possible


def test_preallocation_is_shown_with_its_figures() -> None:
    gpu = device(0, resident("r", 100))
    need = memory.need_on(held(2100, 15900), gpu, LIMITS)
    assert memory.shortage(need, gpu, LIMITS, "'greedy'").endswith(
        "but 'greedy' needs all that an empty device has: it was seen to take 15900 MiB in "
        "advance, of which it used 2100."
    )


def test_preallocation_on_one_device_model_says_nothing_about_a_larger_one() -> None:
    need = memory.need_on(held(2100, 15900), device(memory=80000), LIMITS)
    assert need == Need(2310)
