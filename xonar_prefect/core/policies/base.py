"""What a policy is."""

from __future__ import annotations

from typing import Protocol

from xonar_prefect.core.decisions import Decision
from xonar_prefect.core.models import Snapshot


class Policy(Protocol):
    """Decides what becomes of every held training.

    A policy is a value without state: the same snapshot gives the same decisions.
    """

    @property
    def name(self) -> str:
        """Name in settings and tables."""
        ...

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order.

        Where the snapshot wants no holds, they may be missing.
        """
        ...
