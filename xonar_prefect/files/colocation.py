"""Measured pairs as CSV: what trainings reached beside each other, and whether memory sufficed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from xonar_prefect.files.rows import Row, read_rows

COLUMNS = (
    "gpu_model",
    "training_a",
    "training_b",
    "normalised_throughput_a",
    "normalised_throughput_b",
    "out_of_memory",
)


@dataclass(frozen=True, slots=True)
class Colocations:
    """What was measured of pairs.

    Attributes:
        throughputs: Normalised throughput of the first beside the second, by GPU model.
        clashes: Pairs that ran out of memory, by GPU model; each pair sorted.
        rows: How many pairs the file has, by GPU model.
        empty: How many of them say nothing, by GPU model.
        faster: How many have a training that was faster than alone, by GPU model.
    """

    throughputs: dict[tuple[str, str, str], float] = field(default_factory=dict)
    clashes: set[tuple[str, str, str]] = field(default_factory=set)
    rows: Counter[str] = field(default_factory=Counter)
    empty: Counter[str] = field(default_factory=Counter)
    faster: Counter[str] = field(default_factory=Counter)


def read_colocations(path: Path, trainings: Container[str]) -> Colocations:
    """Read measured pairs.

    Args:
        path: The file.
        trainings: The trainings that have a profile.

    Raises:
        FileUnreadableError: The file cannot be read.
        FileContentError: A row is wrong, contradicts itself, repeats an earlier pair in either
            order, or names a training without a profile.
    """
    found = Colocations()
    lines: dict[tuple[str, str, str], int] = {}
    for row in read_rows(path, COLUMNS):
        model = row.text("gpu_model")
        names = [row.text(column) for column in ("training_a", "training_b")]
        for column, name in zip(("training_a", "training_b"), names, strict=True):
            if name not in trainings:
                raise row.wrong(column, f"is {name!r}, of which there is no profile")
        first, second = sorted(names)
        pair = (model, first, second)
        if pair in lines:
            raise row.wrong(
                "training_a", f"and training_b repeat the pair of line {lines[pair]} on {model!r}"
            )
        lines[pair] = row.line
        found.rows[model] += 1
        if _ran_out_of_memory(row):
            found.clashes.add(pair)
            continue
        reached = _reached(row, names)
        for (own, partner), value in reached.items():
            found.throughputs[model, own, partner] = value
        found.empty[model] += not reached
        found.faster[model] += any(value > 1 for value in reached.values())
    return found


def _ran_out_of_memory(row: Row) -> bool:
    flag = row.optional_text("out_of_memory")
    if flag not in {None, "0", "1"}:
        raise row.wrong("out_of_memory", f"is {flag!r}; it must be 0 or 1")
    return flag == "1"


def _reached(row: Row, names: list[str]) -> dict[tuple[str, str], float]:
    columns = ("normalised_throughput_a", "normalised_throughput_b")
    values = [row.optional_number(column, positive=True) for column in columns]
    if names[0] == names[1] and None not in values and values[0] != values[1]:
        raise row.wrong(columns[1], "differs from that of a, but both are the same training")
    pairs = [(names[0], names[1]), (names[1], names[0])]
    return {pair: value for pair, value in zip(pairs, values, strict=True) if value is not None}
