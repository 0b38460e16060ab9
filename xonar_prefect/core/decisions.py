"""What can be decided about a held training, and why: a stable code and a sentence each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeAlias

from xonar_prefect.core.models import Training


class ReasonCode(str, Enum):
    """Why a training was released, held or refused. Stored and shown: never renamed."""

    # released
    FIRST_ON_DEVICE = "FIRST_ON_DEVICE"
    FITS_BESIDE_PARTNER = "FITS_BESIDE_PARTNER"
    COMPLEMENTS_PARTNER = "COMPLEMENTS_PARTNER"
    LEAST_COMPLETION_TIME = "LEAST_COMPLETION_TIME"
    LEAST_INTERFERENCE = "LEAST_INTERFERENCE"
    LEAST_COST = "LEAST_COST"
    NEEDS_NO_DEVICE = "NEEDS_NO_DEVICE"
    # held, because of the devices
    NO_DEVICE = "NO_DEVICE"
    NO_FREE_SLOT = "NO_FREE_SLOT"
    INSUFFICIENT_MEMORY = "INSUFFICIENT_MEMORY"
    KNOWN_TO_CLASH = "KNOWN_TO_CLASH"
    UNPROFILED_NEEDS_EMPTY_DEVICE = "UNPROFILED_NEEDS_EMPTY_DEVICE"
    PARTNER_UNPROFILED = "PARTNER_UNPROFILED"
    EXCLUSIVE = "EXCLUSIVE"
    GANG_INCOMPLETE = "GANG_INCOMPLETE"
    BETTER_PARTNER_CHOSEN = "BETTER_PARTNER_CHOSEN"
    BETTER_ALONE = "BETTER_ALONE"
    DEVICE_KEPT_FREE = "DEVICE_KEPT_FREE"
    OLDER_TRAINING_WAITS = "OLDER_TRAINING_WAITS"
    # held, because of the host around them
    DISK_FULL = "DISK_FULL"
    INSUFFICIENT_HOST_MEMORY = "INSUFFICIENT_HOST_MEMORY"
    INSUFFICIENT_CPU_THREADS = "INSUFFICIENT_CPU_THREADS"
    INSUFFICIENT_SHARED_MEMORY = "INSUFFICIENT_SHARED_MEMORY"
    WAITED_ON_BY_PARENT = "WAITED_ON_BY_PARENT"
    # held, because its latest release came to nothing, and not decided about since
    PUT_BACK = "PUT_BACK"
    # held, because somebody limits it
    POOL_PAUSED = "POOL_PAUSED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    POOL_LIMIT = "POOL_LIMIT"
    QUEUE_LIMIT = "QUEUE_LIMIT"
    DEPLOYMENT_LIMIT = "DEPLOYMENT_LIMIT"
    WORKER_LIMIT = "WORKER_LIMIT"
    STARTS_LIMITED = "STARTS_LIMITED"
    OBSERVE_ONLY = "OBSERVE_ONLY"
    # refused
    NEVER_FITS = "NEVER_FITS"
    TOO_FEW_DEVICES = "TOO_FEW_DEVICES"
    WRONG_JOB_VARIABLE = "WRONG_JOB_VARIABLE"
    DEPLOYMENT_DELETED = "DEPLOYMENT_DELETED"

    @property
    def is_of_hold(self) -> bool:
        """Whether it tells why a training is held."""
        return self not in _OF_RELEASE | _OF_REFUSAL


_OF_RELEASE = frozenset(
    {
        ReasonCode.FIRST_ON_DEVICE,
        ReasonCode.FITS_BESIDE_PARTNER,
        ReasonCode.COMPLEMENTS_PARTNER,
        ReasonCode.LEAST_COMPLETION_TIME,
        ReasonCode.LEAST_INTERFERENCE,
        ReasonCode.LEAST_COST,
        ReasonCode.NEEDS_NO_DEVICE,
    }
)
_OF_REFUSAL = frozenset(
    {
        ReasonCode.NEVER_FITS,
        ReasonCode.TOO_FEW_DEVICES,
        ReasonCode.WRONG_JOB_VARIABLE,
        ReasonCode.DEPLOYMENT_DELETED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Something a decision could have been, and why it was not.

    Attributes:
        candidate: The training (for a release: who else could have come) or `"alone"`.
        device: The device it was weighed for.
        code: Why it was not chosen.
        reason: The same as a sentence, with the arithmetic.
        predicted_slowdown: Slowdown that was predicted for the candidate, where known.
    """

    candidate: str
    device: str
    code: ReasonCode
    reason: str
    predicted_slowdown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Hand a held training to these devices.

    Attributes:
        training: Whom.
        devices: Where, sorted by id; empty for a run that needs none.
        request_mib: Memory to reserve on each device; None means all of it.
        partners: Run ids of the trainings already there.
        code: Why, for machines.
        reason: Why, in one sentence with the arithmetic.
        predicted_slowdown: For the released training beside its partners; None when unknown.
        alternatives: What was weighed and not chosen.
    """

    training: Training
    devices: tuple[str, ...]
    code: ReasonCode
    reason: str
    request_mib: int | None = None
    partners: tuple[str, ...] = ()
    predicted_slowdown: float | None = None
    alternatives: tuple[Alternative, ...] = ()


class Hold(NamedTuple):
    """Keep a training in the queue; it is weighed again at the next decision.

    A tuple, since every decision makes one for each of the thousands that are held.

    Attributes:
        training: Whom.
        code: Why, for machines.
        reason: Why, in one sentence with the arithmetic.
        alternatives: What is in the way elsewhere.
    """

    training: Training
    code: ReasonCode
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @classmethod
    def all_alike(
        cls,
        trainings: Iterable[Training],
        code: ReasonCode,
        reason: str,
        alternatives: tuple[Alternative, ...],
    ) -> Iterable[Hold]:
        """Return the holds of trainings that are all held for the same reason."""
        fields = zip(trainings, repeat(code), repeat(reason), repeat(alternatives))
        return map(partial(tuple.__new__, cls), fields)  # `cls(...)` would run Python for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Tell a training's owner that no device of this worker can ever take it."""

    training: Training
    code: ReasonCode
    reason: str
    alternatives: tuple[Alternative, ...] = ()


Decision: TypeAlias = Release | Hold | Refuse
