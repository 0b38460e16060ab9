"""What rules know a training by: one object for all trainings that no rule tells apart.

A queue of thousands is of few kinds, and the same trainings are decided about again and again. So
what they have in common is looked for once in the life of a training, not once per decision.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from xonar_prefect.core.memory import Need
    from xonar_prefect.core.models import Profile, Training

_RULED_BY = attrgetter(
    "gpus",
    "priority",
    "queue",
    "deployment",
    "parent",
    "memory_request_mib",
    "exclusive",
    "memory_elastic",
    "host_memory_mib",
    "cpu_threads",
    "shared_memory_mib",
    "profile_key",
    "owner",
)
_MEASURED = attrgetter(
    "peak_memory_mib",
    "held_memory_mib",
    "peak_host_memory_mib",
    "active_fraction",
    "step_seconds",
)


class Traits:
    """All that decides what a training may do, but for its submission and length.

    Trainings with the same traits have the same object, so it is compared by identity.

    Attributes:
        needs: What such trainings need on devices of a type, as far as somebody has asked.
    """

    __slots__ = ("__weakref__", "needs")

    def __init__(self) -> None:
        self.needs: dict[Hashable, Need] = {}

    @classmethod
    def of(cls, training: Training) -> Traits:
        """Return the traits of a training."""
        key = (_RULED_BY(training), _measured(training.profiles))
        traits = _in_use.get(key)
        return _in_use.setdefault(key, cls()) if traits is None else traits


_in_use: WeakValueDictionary[tuple[object, ...], Traits] = WeakValueDictionary()
"""The traits of all trainings that exist; those of no training are forgotten."""


def _measured(profiles: Mapping[str, Profile]) -> tuple[object, ...]:
    return tuple([(model, *_MEASURED(each)) for model, each in sorted(profiles.items())])
