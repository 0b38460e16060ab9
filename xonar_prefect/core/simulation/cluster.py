"""The devices on the virtual clock: who is on them, and how fast that lets everybody be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xonar_prefect.core.models import Device
from xonar_prefect.core.simulation.learning import Knowledge
from xonar_prefect.core.simulation.running import DeviceSlots, Running, Window
from xonar_prefect.core.simulation.world import MANY_DEVICES, World

_REPORT_AGE_SHARE = 0.05
"""On many devices, reports of progress may be this share of the remaining time old, as a worker's
are by some seconds: else showing progress anew takes as long as deciding."""


class Cluster:
    """What is true of the released trainings.

    Attributes:
        slots: The devices, by id.
        running: The released trainings, by run id.
        free_slots: Slots that nobody holds.
        pairs: Kinds that were on a device together: device model and the two, sorted.
    """

    def __init__(
        self, world: World, knowledge: Knowledge, set_alarm: Callable[[Running], None]
    ) -> None:
        """Take the empty devices of a world.

        Args:
            world: The world.
            knowledge: Is told of every co-run.
            set_alarm: Is called with a training whenever its speed has changed.
        """
        self._world = world
        self._knowledge = knowledge
        self._set_alarm = set_alarm
        self._slowdowns: dict[tuple[str, tuple[str, ...], str], float] = {}
        self.slots = {device.id: DeviceSlots(device) for device in world.devices}
        self.running: dict[str, Running] = {}
        self.free_slots = len(world.devices) * world.limits.max_trainings_per_gpu
        self.pairs: set[tuple[str, str, str]] = set()

    def views(self, now_s: float) -> tuple[Device, ...]:
        """Return the devices as the policy sees them."""
        known = self._world.durations_known
        age = _REPORT_AGE_SHARE if len(self.slots) > MANY_DEVICES else 0.0
        return tuple(
            [
                each.view(now_s, remaining_known=known, report_age_share=age)
                for each in self.slots.values()
            ]
        )

    def join(self, running: Running, now_s: float) -> None:
        """Put a training on its devices, where it starts up."""
        for slots in running.slots:
            slots.running.append(running)
            slots.forget_view()
        self.running[running.training.run_id] = running
        self.free_slots -= len(running.slots)
        self._retime([running, *running.mates], now_s)

    def begin(self, running: Running, now_s: float) -> None:
        """Let a training make its first step."""
        mates = running.mates
        for mate in mates:
            if mate.ready:
                mate.partners.add(running.submission.name)
                running.partners.add(mate.submission.name)
                first, second = sorted((running.submission.kind, mate.submission.kind))
                self.pairs.add((running.device_model, first, second))
        running.become_ready()
        self._retime([running, *mates], now_s)

    def leave(self, running: Running, now_s: float) -> None:
        """Take a training off its devices."""
        self._close_window(running, now_s)
        mates = running.mates
        for slots in running.slots:
            slots.running.remove(running)
            slots.forget_view()
        del self.running[running.training.run_id]
        self.free_slots += len(running.slots)
        self._retime(mates, now_s)

    def runs_out_of_memory(self, newcomer: Running) -> bool:
        """Tell whether a device is too small for what is in its memory with this one."""
        model = newcomer.device_model
        for slots in newcomer.slots:
            there = [each for each in slots.running if each.ready or each is newcomer]
            kinds = [each.submission.kind for each in there]
            peaks = sum(self._world.peak_memory_mib(kind, model) for kind in kinds)
            if peaks > slots.device.memory_mib - slots.device.reserved_mib:
                return True
            if len(kinds) > 1 and self._world.truth.out_of_memory(kinds, model):
                return True
        return False

    def _retime(self, trainings: Iterable[Running], now_s: float) -> None:
        """Give these the speed that what is beside them leaves them."""
        for running in trainings:
            kind = running.kind
            partner_kinds = () if kind is None else _kinds(running.mates)
            window = running.window
            if window is not None and window.kind == kind and window.partner_kinds == partner_kinds:
                continue
            running.advance(now_s)
            self._close_window(running, now_s)
            running.window = Window(
                kind=kind,
                partner_kinds=partner_kinds,
                slowdown=self._slowdown(running, partner_kinds),
                opened_at_s=now_s,
            )
            if running.window.is_co_run:
                self._knowledge.open_window(running, running.window)
            self._set_alarm(running)

    def _close_window(self, running: Running, now_s: float) -> None:
        if running.window is not None and running.window.is_co_run:
            self._knowledge.close_window(running, running.window, now_s)
        running.window = None

    def _slowdown(self, running: Running, partner_kinds: tuple[str, ...]) -> float:
        """Ask the truth; of several devices with different partners, the worst counts."""
        kind, model = running.kind, running.device_model
        if kind is None:
            return 1.0
        if len(running.slots) < 2:
            return self._true_slowdown(kind, partner_kinds, model)
        sets = {
            _kinds(each for each in slots.running if each is not running) for slots in running.slots
        }
        return max(self._true_slowdown(kind, kinds, model) for kinds in sets)

    def _true_slowdown(self, kind: str, partner_kinds: tuple[str, ...], model: str) -> float:
        at = (kind, partner_kinds, model)
        slowdown = self._slowdowns.get(at)
        if slowdown is None:
            slowdown = self._world.truth.slowdown(*at)
            self._slowdowns[at] = slowdown
        return slowdown


def _kinds(trainings: Iterable[Running]) -> tuple[str, ...]:
    """Return what these use the device as, sorted."""
    return tuple(sorted(each.kind for each in trainings if each.kind is not None))
