from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from xonar_prefect.cli.demo import trainings
from xonar_prefect.errors import DemoError

FLOWS = Path(__file__).parents[3] / "flows"


@pytest.mark.parametrize("size", [8, 10])
def test_queue_has_every_kind_and_no_training_twice(size: int) -> None:
    queue = trainings.queue_of(size)

    assert len(queue) == size
    assert {training.kind for training in queue} == set(trainings.KINDS)
    seeds = Counter((training.kind, training.parameters["seed"]) for training in queue)
    assert set(seeds.values()) == {1}


def test_same_size_gives_the_same_queue_and_names_are_unique() -> None:
    queue = trainings.queue_of(19)

    assert queue == trainings.queue_of(19)
    assert queue[:8] == trainings.queue_of(8)
    assert len({training.name for training in queue}) == 19


def test_profiling_queue_has_every_kind_once() -> None:
    assert [training.kind for training in trainings.one_of_each()] == list(trainings.KINDS)


def test_flows_of_the_repository_are_found_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("xonar_prefect.__file__", str(FLOWS.parent / "xonar_prefect/__init__.py"))
    monkeypatch.setattr(trainings, "_NEEDED", ())
    monkeypatch.chdir(tmp_path)

    assert trainings.find_flows(None) == FLOWS


def test_missing_flows_are_a_sentence_that_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"directory `flows` of the repository.*--flows"):
        trainings.find_flows(tmp_path)


def test_missing_package_is_a_sentence_that_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainings, "_NEEDED", ("no_such_package",))

    with pytest.raises(DemoError, match=r"trains with no_such_package.*pip install"):
        trainings.find_flows(FLOWS)
