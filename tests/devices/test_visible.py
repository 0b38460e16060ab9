"""What the worker's own CUDA_VISIBLE_DEVICES leaves it.

ray-project/ray#1480, #16614, #50180, #53643 and gpuopenanalytics/pynvml#28: a scheduler that was
given GPUs 4, 5, 6 hands out 0, 1, 2.
"""

from __future__ import annotations

import pytest

from xonar_prefect.devices.visible import ListedDevice, names_no_device, select
from xonar_prefect.errors import VisibleDevicesError

V100 = ListedDevice(id="GPU-aaaa1111", gpu_index=0, gpu_id="GPU-aaaa1111")
T4 = ListedDevice(id="GPU-aabb2222", gpu_index=1, gpu_id="GPU-aabb2222")
LEFT, RIGHT = (
    ListedDevice(
        id=f"MIG-{name}",
        gpu_index=2,
        gpu_id="GPU-cccc3333",
        old_name=f"MIG-GPU-cccc3333/{instance}/0",
    )
    for name, instance in (("dd01", 1), ("ee02", 2))
)
ALL = (V100, T4, LEFT, RIGHT)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ALL),
        ("0", (V100,)),
        ("1,0", (V100, T4)),
        (" 1 , 0 ", (V100, T4)),
        ("0,0", (V100,)),
        ("2", (LEFT, RIGHT)),
        ("GPU-aaaa1111", (V100,)),
        ("GPU-aaa", (V100,)),
        ("gpu-AAAA1111", (V100,)),
        ("GPU-cccc", (LEFT, RIGHT)),
        ("MIG-dd01", (LEFT,)),
        ("MIG-e", (RIGHT,)),
        ("MIG-GPU-cccc3333/2/0", (RIGHT,)),
        ("0,MIG-dd01", (V100, LEFT)),
    ],
)
def test_an_entry_is_an_index_a_uuid_or_the_beginning_of_one(
    visible: str | None, expected: tuple[ListedDevice, ...]
) -> None:
    assert select(visible, ALL) == {device.id for device in expected}


@pytest.mark.parametrize("visible", ["", " ", "-1", "NoDevFiles"])
def test_nothing_minus_one_and_slurms_word_take_all_devices_away(visible: str) -> None:
    assert names_no_device(visible)
    assert select(visible, ALL) == frozenset()


def test_an_unset_variable_takes_nothing_away() -> None:
    assert not names_no_device(None)


@pytest.mark.parametrize(
    ("visible", "entry"),
    [
        ("7", "7"),
        ("0,7,1", "7"),
        ("0,-1,1", "-1"),
        ("0,,1", ""),
        ("GPU-ffff", "GPU-ffff"),
        ("MIG-ffff", "MIG-ffff"),
        ("aaaa1111", "aaaa1111"),
        ("all", "all"),
        ("²", "²"),
    ],
)
def test_an_entry_that_matches_nothing_is_refused_where_cuda_would_drop_the_rest(
    visible: str, entry: str
) -> None:
    with pytest.raises(VisibleDevicesError, match="matches no device") as refusal:
        select(visible, ALL)
    assert f"{entry!r} matches no device" in str(refusal.value)
    assert "0 = GPU-aaaa1111, 1 = GPU-aabb2222, 2 = MIG-dd01" in str(refusal.value)


@pytest.mark.parametrize("visible", ["GPU-aa", "GPU-", "MIG-"])
def test_the_beginning_of_several_is_refused(visible: str) -> None:
    with pytest.raises(VisibleDevicesError, match="is the beginning of several"):
        select(visible, ALL)


def test_without_any_device_every_entry_is_refused() -> None:
    with pytest.raises(VisibleDevicesError, match="which are: none"):
        select("0", ())
