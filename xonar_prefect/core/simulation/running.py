"""A released training on the virtual clock: its progress, re-timed whenever its partners change."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from xonar_prefect.core.models import (
    Device,
    Resident,
    Training,
)
from xonar_prefect.core.simulation.world import STARTING_UP, Submission

UNKNOWN_STEP_SECONDS = 1.0
"""What counts as a step of a training whose step time is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """A time in which what a training does and what is beside it stayed the same.

    Attributes:
        kind: Its kind, `STARTING_UP`, or None while it starts up without using the device.
        partner_kinds: The same of its partners, sorted; without those that do not use the device.
        slowdown: How much slower than alone it is.
        opened_at_s: Since when.
    """

    kind: str | None
    partner_kinds: tuple[str, ...]
    slowdown: float
    opened_at_s: float

    @property
    def is_co_run(self) -> bool:
        """Whether it and partners stepped beside each other, nobody starting up."""
        everybody = (self.kind, *self.partner_kinds)
        return len(everybody) > 1 and not {None, STARTING_UP} & set(everybody)


class Running:
    """One released training.

    Attributes:
        submission: What was submitted.
        training: The value that the policy knows.
        slots: The slots it holds.
        devices: Ids of its devices.
        device_model: Model of its devices; empty text where it needs none.
        request_mib: Memory reserved on each.
        step_seconds: True step time alone on these devices.
        started_at_s: When it was released.
        kind: What uses the device: its kind, or what its start-up counts as; None for nothing.
        ready: Whether its start-up is over.
        startup_left_s: Seconds of start-up, if nobody disturbs it, that are left.
        left_s: Seconds of training alone, on these devices, that are left.
        profile_at_s: What will be left when its profile has settled; None where none is due.
        window: The time under way in which nothing around it changed.
        version: Number of the latest alarm; earlier ones are void.
        partners: Names of all it ran beside.
    """

    __slots__ = (
        "_resident",
        "_seen_at_s",
        "device_model",
        "devices",
        "kind",
        "left_s",
        "partners",
        "profile_at_s",
        "progress_at_s",
        "ready",
        "request_mib",
        "slots",
        "started_at_s",
        "startup_left_s",
        "step_seconds",
        "submission",
        "training",
        "version",
        "window",
    )

    def __init__(
        self,
        submission: Submission,
        training: Training,
        slots: tuple[DeviceSlots, ...],
        *,
        request_mib: int | None,
        step_seconds: float | None,
        startup_s: float,
        startup_kind: str | None,
        left_s: float,
        now_s: float,
    ) -> None:
        self.submission = submission
        self.training = training
        self.slots = slots
        self.devices = tuple([each.device.id for each in slots])
        self.device_model = slots[0].device.model if slots else ""
        self.request_mib = request_mib
        self.step_seconds = step_seconds or UNKNOWN_STEP_SECONDS
        self.started_at_s = now_s
        self.ready = False
        self.kind = startup_kind
        self.startup_left_s = startup_s
        self.left_s = left_s
        self.profile_at_s: float | None = None
        self.progress_at_s = now_s
        self.window: Window | None = None
        self.version = 0
        self.partners: set[str] = set()
        self._resident: Resident | None = None
        self._seen_at_s = -1.0

    @property
    def mates(self) -> list[Running]:
        """Who shares a device with it, in the order of their releases."""
        if len(self.slots) == 1:
            return [each for each in self.slots[0].running if each is not self]
        found = {id(each): each for slots in self.slots for each in slots.running}
        return [each for each in found.values() if each is not self]

    def advance(self, now_s: float) -> None:
        """Make the progress since the last time, at the speed of the window."""
        if self.window is not None:
            made_s = (now_s - self.progress_at_s) / self.window.slowdown
            if self.ready:
                self.left_s = max(0.0, self.left_s - made_s)
            else:
                self.startup_left_s = max(0.0, self.startup_left_s - made_s)
        self.progress_at_s = now_s

    def become_ready(self) -> None:
        """End the start-up."""
        self.ready = True
        self.kind = self.submission.kind
        self.startup_left_s = 0.0

    def next_alarm(self) -> float:
        """Return when the next thing happens to it, if its partners stay."""
        slowdown = 1.0 if self.window is None else self.window.slowdown
        until = self.left_s - (self.profile_at_s or 0.0) if self.ready else self.startup_left_s
        return self.progress_at_s + until * slowdown

    def remaining_seconds(self, now_s: float) -> float:
        """Return how long it would still need alone on these devices, after its start-up."""
        if self.window is None or not self.ready:
            return self.left_s
        return max(0.0, self.left_s - (now_s - self.progress_at_s) / self.window.slowdown)

    def forget_view(self) -> None:
        """Show it anew: something but its progress has changed."""
        self._resident = None
        for slots in self.slots:
            slots.forget_view()

    def resident(self, now_s: float, *, remaining_known: bool) -> Resident:
        """Return it as the policy sees it now."""
        if self._resident is None or self._seen_at_s != now_s:
            told = remaining_known or self.ready
            self._resident = Resident(
                training=self.training,
                devices=self.devices,
                request_mib=self.request_mib,
                started_at_s=self.started_at_s,
                remaining_seconds=self.remaining_seconds(now_s) if told else None,
            )
            self._seen_at_s = now_s
        return self._resident


class DeviceSlots:
    """A device and who is on it."""

    __slots__ = ("_fresh_until_s", "_values", "_view", "device", "running")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.running: list[Running] = []
        self._values = {each.name: getattr(device, each.name) for each in fields(device)}
        self._view = device
        self._fresh_until_s = math.inf

    def forget_view(self) -> None:
        """Show the device anew: who is on it, or something of them, has changed."""
        self._fresh_until_s = -math.inf

    def view(self, now_s: float, *, remaining_known: bool, report_age_share: float) -> Device:
        """Return the device as the policy sees it now.

        Args:
            now_s: The time.
            remaining_known: Whether remaining times are known before the first report.
            report_age_share: By which share of the shortest remaining time on the device what is
                shown of it may be too old.
        """
        if not self.running:
            return self.device
        if now_s >= self._fresh_until_s:
            residents = [
                each.resident(now_s, remaining_known=remaining_known) for each in self.running
            ]
            self._values["residents"] = tuple(residents)
            self._view = Device(**self._values)
            self._fresh_until_s = now_s
            if report_age_share:
                shortest_s = min(each.remaining_seconds(now_s) for each in self.running)
                self._fresh_until_s += report_age_share * shortest_s
        return self._view
