from __future__ import annotations

import os

import pytest

from xonar_prefect.cli.demo.devices import DemoDevices, find_devices
from xonar_prefect.errors import CoreListError


@pytest.fixture(autouse=True)
def _no_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XONAR_CPU_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("available", "devices", "spare"),
    [
        ({0}, "0", ()),
        ({0, 1}, "0,1", ()),
        ({0, 1, 2}, "1,2", (0,)),
        (set(range(16)), "1,2", (0, *range(3, 16))),
    ],
)
def test_two_cores_stand_in_and_the_rest_is_left_to_the_server(
    monkeypatch: pytest.MonkeyPatch, available: set[int], devices: str, spare: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: available)

    found = find_devices("cpu")

    assert found.environment == {"XONAR_DEVICES": "cpu", "XONAR_CPU_DEVICES": devices}
    assert found.count == len(devices.split(","))
    assert found.spare_cores == spare


def test_cores_that_the_user_names_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setenv("XONAR_CPU_DEVICES", "4-6")

    found = find_devices("cpu")

    assert (found.count, found.spare_cores) == (3, (0, 1, 2, 3, 7))


def test_cores_that_are_not_there_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setenv("XONAR_CPU_DEVICES", "7")

    with pytest.raises(CoreListError):
        find_devices("cpu")


def test_queue_grows_with_the_devices_from_ten() -> None:
    sizes = [DemoDevices(kind="nvidia", model="V100", count=count).trainings for count in (1, 2, 8)]

    assert sizes == [10, 10, 32]
