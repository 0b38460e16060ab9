"""A training that asks for memory in vain without end, told from one that does with less."""

from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.worker.memory_complaints import LEAST_SECONDS, MOST_COMPLAINTS, MemoryComplaints

LINE = "failed to allocate 3.9GiB from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"


class World:
    """An output that grows, and a clock that is set."""

    def __init__(self, output: Path) -> None:
        self.now_s = 1000.0
        self.output = output
        self.complaints = MemoryComplaints(lambda: self.now_s)

    def says(self, text: str, steps_done: int = 0) -> str | None:
        with self.output.open("a") as file:
            file.write(text)
        return self.complaints.endless(self.output, steps_done)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "output.log")


def test_many_complaints_over_a_long_time_without_a_step_are_without_end(world: World) -> None:
    assert world.says(LINE * MOST_COMPLAINTS) is None
    world.now_s += LEAST_SECONDS
    assert world.says(LINE) == LINE.strip()


def test_a_burst_that_is_over_is_left_alone(world: World) -> None:
    world.says(LINE * 10 * MOST_COMPLAINTS)
    world.now_s += 10 * LEAST_SECONDS
    assert world.says("epoch 1\n") is None


def test_a_training_that_takes_steps_is_left_alone(world: World) -> None:
    for step in range(100):
        world.now_s += LEAST_SECONDS
        assert world.says(LINE * MOST_COMPLAINTS, steps_done=step) is None


def test_few_complaints_are_left_alone(world: World) -> None:
    for _ in range(MOST_COMPLAINTS - 1):
        world.now_s += LEAST_SECONDS
        assert world.says(LINE) is None


def test_a_complaint_that_is_written_in_two_pieces_counts_once(world: World) -> None:
    world.says(LINE * (MOST_COMPLAINTS - 1))
    world.now_s += LEAST_SECONDS
    assert world.says(LINE[:40]) is None
    assert world.says(LINE[40:]) is not None


def test_no_output_is_no_complaint(world: World) -> None:
    assert world.complaints.endless(world.output, 0) is None


def test_what_has_ended_is_forgotten(world: World) -> None:
    world.says(LINE * MOST_COMPLAINTS)
    world.complaints.forget(world.output)
    world.output.unlink()
    world.now_s += LEAST_SECONDS
    assert world.says(LINE) is None
