"""What trainings print: on the worker's console while they run, and its end afterwards."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from xonar_prefect.worker.output import OutputFollower, last_lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


@pytest.fixture
def console() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def follower(console: io.StringIO) -> OutputFollower:
    return OutputFollower(console)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines_are_printed_once_with_the_name_before_them(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    append(log, "epoch 1\nepoch 2\n")
    follower.follow(log, "digits")
    append(log, "epoch 3\n")
    follower.follow(log, "digits")
    assert console.getvalue() == "digits | epoch 1\ndigits | epoch 2\ndigits | epoch 3\n"


def test_a_line_is_printed_when_it_is_complete(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    append(log, "epo")
    follower.follow(log, "digits")
    assert console.getvalue() == ""
    append(log, "ch 1\n")
    follower.follow(log, "digits")
    assert console.getvalue() == "digits | epoch 1\n"


def test_the_last_line_is_printed_even_without_an_end(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    append(log, "Killed")
    follower.finish(log, "digits")
    assert console.getvalue() == "digits | Killed\n"


def test_a_burst_of_output_is_printed_whole(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    lines = [f"step {number}" for number in range(20_000)]
    append(log, "\n".join(lines) + "\n")
    follower.follow(log, "d")
    assert console.getvalue() == "".join(f"d | {line}\n" for line in lines)


def test_a_line_without_end_does_not_stop_the_lines_after_it(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    append(log, "x" * 100_000 + "\nafterwards\n")
    follower.follow(log, "digits")
    assert console.getvalue().endswith("digits | afterwards\n")
    assert console.getvalue().count("x") == 100_000


def test_what_an_earlier_worker_printed_is_not_printed_again(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    append(log, "old\n")
    follower.skip(log)
    append(log, "new\n")
    follower.follow(log, "digits")
    assert console.getvalue() == "digits | new\n"


def test_a_training_without_output_prints_nothing(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    follower.skip(log)
    follower.follow(log, "digits")
    follower.finish(log, "digits")
    assert console.getvalue() == ""


def test_bytes_that_are_no_text_are_replaced(
    follower: OutputFollower, console: io.StringIO, log: Path
) -> None:
    log.write_bytes(b"a\xff\n")
    follower.follow(log, "digits")
    assert console.getvalue() == "digits | a\N{REPLACEMENT CHARACTER}\n"


def test_a_console_that_is_gone_does_not_matter(log: Path) -> None:
    console = io.StringIO()
    console.close()
    append(log, "epoch 1\n")
    OutputFollower(console).follow(log, "digits")


def test_the_end_of_the_output_is_its_last_lines(log: Path) -> None:
    append(log, "".join(f"{number}\n" for number in range(100)))
    assert last_lines(log, 3) == "97\n98\n99"
    assert last_lines(log.with_name("none")) == ""
