from __future__ import annotations

from tests.core.building import device, resident, snapshot, training
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Device
from xonar_prefect.core.planning import Board


def board_with(*devices: Device, slots: int = 2) -> Board:
    held = [training("a", 0, request=100), training("b", 1, request=100)]
    return Board(snapshot(held, devices), slots=slots)


def test_a_full_place_has_no_options() -> None:
    board = board_with(device(0, resident("x", 100), resident("y", 100)))
    assert list(board.options(board.places[0])) == []
    assert board.open_places() == []


def test_an_unavailable_place_has_no_options() -> None:
    board = board_with(device(unavailable="lost"))
    assert list(board.options(board.places[0])) == []
    assert board.open_places() == []


def test_options_are_the_first_of_each_kind_in_queue_order() -> None:
    held = [
        training("second", 2, request=100, key="k"),
        training("first", 1, request=100, key="k"),
        training("other", 0, request=200),
    ]
    board = Board(snapshot(held, [device()]), slots=2)
    assert [option.training.name for option in board.options(board.places[0])] == [
        "other",
        "first",
    ]


def test_places_are_open_from_the_emptiest_to_the_fullest() -> None:
    board = board_with(device(0, resident("x", 100)), device(2), device(1))
    assert [place.device.index for place in board.open_places()] == [1, 2, 0]


def test_a_release_takes_its_training_memory_and_slot() -> None:
    board = board_with(device())
    (place,) = board.places
    option = next(board.options(place))
    assert board.release(option, ReasonCode.FIRST_ON_DEVICE, "Because.")
    assert place.available_mib == 15900
    assert [option.training.name for option in board.options(place)] == ["b"]
    assert next(board.options(place)).partners == (option.training,)
