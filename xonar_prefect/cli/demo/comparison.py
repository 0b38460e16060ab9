"""The same queue under several policies in turn, and what that changes on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from xonar_prefect.cli import output
from xonar_prefect.cli.demo.report import QueueResult

OURS = "ours"
OTHERS = ("serial", "parallel")
ARMS = (OURS, *OTHERS)


def order_of(repeat: int) -> tuple[str, ...]:
    """Return the order of the arms in a repeat: each comes first in turn.

    A machine that grows warmer or busier then favours none of them.

    >>> order_of(0), order_of(1)
    (('ours', 'serial', 'parallel'), ('serial', 'parallel', 'ours'))
    """
    first = repeat % len(ARMS)
    return ARMS[first:] + ARMS[:first]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Results of every repeat, by arm."""

    repeats: tuple[Mapping[str, QueueResult], ...]

    def average_jct_s(self, arm: str) -> float | None:
        """Return the mean over the repeats; None where one of them has no average."""
        return _mean([repeat[arm].average_jct_s for repeat in self.repeats])

    def differences(self, other: str) -> tuple[float | None, ...]:
        """Return, for every repeat, our average JCT against the other's as a share of it.

        Negative is better than the other; None where one of the two is unknown.
        """
        return tuple(
            _relative(repeat[OURS].average_jct_s, repeat[other].average_jct_s)
            for repeat in self.repeats
        )

    def combined(self, arm: str) -> QueueResult:
        """Return an arm's trainings of all repeats, with the means over the repeats."""
        several = len(self.repeats) > 1
        return QueueResult(
            trainings=tuple(
                _renamed(training, number) if several else training
                for number, repeat in enumerate(self.repeats, start=1)
                for training in repeat[arm].trainings
            ),
            average_jct_s=self.average_jct_s(arm),
            makespan_s=_mean([repeat[arm].makespan_s for repeat in self.repeats]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return our result with those of the others beside it, and every repeat by itself."""
        return {
            **self.combined(OURS).to_json(),
            **{other: self.combined(other).to_json() for other in OTHERS},
            "repeats": [
                {arm: result.to_json() for arm, result in repeat.items()} for repeat in self.repeats
            ],
        }


def _renamed(training: Any, repeat: int) -> Any:
    partner = training.partner and f"{training.partner} ({repeat})"
    return replace(training, name=f"{training.name} ({repeat})", partner=partner)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _relative(ours: float | None, other: float | None) -> float | None:
    return None if ours is None or other is None else ours / other - 1.0


def table_of(comparison: Comparison, policy: str) -> Table:
    """Return average JCTs per repeat and their paired differences as a table."""
    title = f"Average JCT, measured (ours: {policy})"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("repeat")
    for heading in (OURS, *OTHERS, *(f"ours against {each}" for each in OTHERS)):
        table.add_column(heading, justify="right")
    differences = [comparison.differences(other) for other in OTHERS]
    for number, repeat in enumerate(comparison.repeats):
        averages = [_seconds(repeat[arm].average_jct_s) for arm in ARMS]
        table.add_row(
            *_cells([str(number + 1), *averages, *(_signed(each[number]) for each in differences)])
        )
    if len(comparison.repeats) > 1:
        table.add_section()
        averages = [_seconds(comparison.average_jct_s(arm)) for arm in ARMS]
        table.add_row(*_cells(["mean", *averages, *(_signed(_mean(each)) for each in differences)]))
    return table


def sentences_about(comparison: Comparison) -> list[str]:
    """Say in words what the comparison showed, also when ours is worse."""
    return [_sentence(comparison, other) for other in OTHERS]


def _sentence(comparison: Comparison, other: str) -> str:
    differences = comparison.differences(other)
    known = [value for value in differences if value is not None]
    mean = _mean(differences)
    if mean is None:
        return f"Against {other}: not every training completed, so there is no figure."
    verdict = "lower" if mean < 0 else "higher"
    sentence = f"Against {other}: our average JCT is {abs(mean):.1%} {verdict}"
    if len(known) == 1:
        return f"{sentence} (one repeat: no statement about chance)."
    return f"{sentence} ({min(known):+.1%} to {max(known):+.1%} in {len(known)} paired repeats)."


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} s"


def _signed(share: float | None) -> str | None:
    return None if share is None else f"{share:+.1%}"


def _cells(values: Sequence[str | None]) -> list[Text]:
    return [Text(output.UNKNOWN if value is None else value) for value in values]
