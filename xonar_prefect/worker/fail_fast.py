"""Tells devices on which one training after the other fails within seconds."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.core.quarantine import (
    Attempt,
    FailFastRule,
    Quarantine,
    QuarantineCause,
    fails_fast,
    pause_seconds,
)
from xonar_prefect.worker.quarantines import Quarantines
from xonar_prefect.worker.slots import Slot, Slots

# Signals of people, of a kernel that runs out of memory, and of ours; and what a launcher, like a
# shell, says of a command that cannot be started. None of it is a device's doing.
_NOT_OF_A_DEVICE = frozenset(
    (
        126,
        127,
        *(
            code
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
            for code in (-number, 128 + number)
        ),
    )
)


class FailFast:
    """Follows how trainings fare on each device, and quarantines one that ends them all.

    What it has seen is forgotten with the worker; quarantines are not.

    Args:
        slots: The worker's slots.
        quarantines: Its devices' quarantines.
        state_of: Asks for the state of a run; None where there is none, or no answer.
        rule: The rule.
        clock: The time.
    """

    def __init__(
        self,
        slots: Slots,
        quarantines: Quarantines,
        state_of: Callable[[str], Awaitable[StateType | None]],
        *,
        rule: FailFastRule,
        clock: Callable[[], float],
    ) -> None:
        self._slots = slots
        self._quarantines = quarantines
        self._state_of = state_of
        self._rule = rule
        self._clock = clock
        self._attempts: list[Attempt] = []
        self._proven: set[str] = set()
        self._worked_at_s: dict[str, float] = {}

    async def look(self, freed: Iterable[Slot]) -> None:
        """Judge by the trainings that have ended, and by those that run long enough."""
        if self._rule.failures == 0:
            return
        now = self._clock()
        suspects: set[str] = set()
        for slot in freed:
            self._proven.discard(slot.entry.run_id)
            worked = await self._worked(slot)
            if worked is not None:
                self._note(slot, slot.entry.ended_at_s or now, worked=worked)
                suspects.update(() if worked else slot.entry.devices)
        for slot in self._slots:
            if slot.entry.run_id not in self._proven and self._outlasts(slot, now):
                self._proven.add(slot.entry.run_id)
                self._note(slot, now, worked=True)
        for device in sorted(suspects):
            self._blame(device, now)

    def forgive(self, device: str, until_s: float) -> None:
        """Forget what spoke against a device before this time."""
        self._worked_at_s[device] = max(until_s, self._worked_at_s.get(device, until_s))
        self._attempts = [
            each for each in self._attempts if each.device != device or each.ended_at_s > until_s
        ]

    def _outlasts(self, slot: Slot, until_s: float) -> bool:
        """Tell whether a training has run, or did run, longer than one that fails fast."""
        launched_at_s = slot.entry.launched_at_s
        if slot.entry.state is SlotState.RESERVED or launched_at_s is None:
            return False
        return until_s - launched_at_s >= self._rule.within_seconds

    async def _worked(self, slot: Slot) -> bool | None:
        """Tell how a training fared; None where that says nothing about its device."""
        entry = slot.entry
        if entry.launched_at_s is None or entry.ended_at_s is None:
            return None
        if self._outlasts(slot, entry.ended_at_s):
            return True
        if slot.stop_requested_at_s is not None or entry.exit_code is None:
            return None
        verdict = slot.verdict
        if verdict is not None and (verdict.again or verdict.tally.out_of_memory):
            return None  # it lacked memory, or was ended by something that is not its device
        if entry.exit_code != 0:
            return None if entry.exit_code in _NOT_OF_A_DEVICE else False
        # A flow that fails ends its process with 0 all the same.
        state = await self._state_of(entry.run_id)
        return None if state is None else _WORKED.get(state)

    def _note(self, slot: Slot, at_s: float, *, worked: bool) -> None:
        training = slot.training
        for device in slot.entry.devices:
            attempt = Attempt(
                device=device,
                run_id=slot.entry.run_id,
                kind=training.deployment or training.profile_key or training.name,
                ended_at_s=at_s,
                worked=worked,
            )
            self._attempts.append(attempt)
            if worked:
                self._worked_at_s[device] = max(at_s, self._worked_at_s.get(device, at_s))
        horizon_s = self._clock() - self._rule.window_seconds
        self._attempts = [each for each in self._attempts if each.ended_at_s >= horizon_s]

    def _blame(self, device: str, now: float) -> None:
        cause = QuarantineCause.FAILS_FAST
        if self._quarantines.get(device, cause) is not None:
            return
        earlier = self._unforgiven(self._quarantines.ended(device, cause))
        against = fails_fast(
            self._attempts, device, self._rule, now_s=now, on_probation=bool(earlier)
        )
        if against:
            self._quarantines.begin(
                device,
                cause,
                _sentence(len(against), self._rule),
                until_s=now + pause_seconds(len(earlier), self._rule),
            )

    def _unforgiven(self, earlier: Sequence[Quarantine]) -> list[Quarantine]:
        """Return the quarantines since which nothing has worked on their device."""
        return [
            each for each in earlier if each.begun_at_s > self._worked_at_s.get(each.device, 0.0)
        ]


_WORKED = {StateType.COMPLETED: True, StateType.FAILED: False}


def _sentence(count: int, rule: FailFastRule) -> str:
    trainings = "a training" if count == 1 else f"{count} trainings, one after the other,"
    return f"{trainings} failed here within {rule.within_seconds:g} s of the launch"


async def state_of(client: PrefectClient, run_id: str) -> StateType | None:
    """Ask for the type of a run's state; None where it has none, or nobody answers."""
    try:
        state = (await client.read_flow_run(UUID(run_id))).state
    except (ObjectNotFound, httpx.HTTPError):
        return None
    return None if state is None else state.type
