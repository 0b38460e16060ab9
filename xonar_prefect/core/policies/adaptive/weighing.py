"""Weighs what could become of one free slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from xonar_prefect.core import memory
from xonar_prefect.core.lookahead import Future, Pause, Scene, cost
from xonar_prefect.core.planning import Board, Option, Place
from xonar_prefect.core.policies.adaptive.line import Line, Waiting
from xonar_prefect.core.policies.adaptive.outlook import Outlook

FORESEEN = 24
"""Trainings of the line that a device's future is played through with."""
PROFILE_SECONDS = 30.0
"""How long an unprofiled training is thought to keep partners away."""
_CLEARLY = 1e-9


class Weighed(NamedTuple):
    """A training that was weighed for a slot.

    Attributes:
        option: Its release.
        waiting: Its place in the line.
        cost: The expected sum of completion times if it comes.
    """

    option: Option
    waiting: Waiting
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is best for one free slot.

    Attributes:
        ranked: Who was weighed, the cheapest first.
        alone: The cost of leaving the slot free until somebody there ends; None if empty.
        drained: The cost of leaving it free until the device is empty, and for whom; None where
            nobody waits for that.
    """

    ranked: tuple[Weighed, ...]
    alone: float | None = None
    drained: tuple[float, Waiting] | None = None

    @property
    def idle_cost(self) -> float:
        """The least cost of leaving the slot free; infinite on an empty device."""
        costs = [] if self.alone is None else [self.alone]
        if self.drained is not None:
            costs.append(self.drained[0])
        return min(costs, default=math.inf)

    @property
    def chosen(self) -> Weighed | None:
        """Who comes; None where the slot is better left free, or nobody fits."""
        if not self.ranked:
            return None
        best = self.ranked[0]
        return best if best.cost <= self.idle_cost * (1 + _CLEARLY) else None

    @property
    def gain(self) -> float:
        """What is saved by whoever comes; infinite on an empty device, negative for nobody."""
        return self.idle_cost - self.ranked[0].cost if self.chosen is not None else -math.inf

    def still_holds(self, released: Option) -> bool:
        """Tell whether it is still right after somebody was released elsewhere."""
        return all(
            each.option.kind is not released.kind
            and not any(place in released.places for place in each.option.places)
            for each in self.ranked
        )


def weigh(board: Board, outlook: Outlook, place: Place, most: int) -> Verdict:
    """Return what is best for a free slot of a place.

    Args:
        board: The plan so far.
        outlook: Who waits.
        place: The place.
        most: How many trainings to weigh.
    """
    line = outlook.line(place.device.model)
    fitting = _fitting(board, line, place, most)
    if not place.residents and len(fitting) < 2:
        return Verdict(ranked=tuple(Weighed(*each, 0.0) for each in fitting))
    foreseen = _foreseen(board, outlook, line, place, fitting, 2 * most)
    futures = {each.training.run_id: outlook.coming(each, place) for each in foreseen}
    everybody = tuple(futures.values())
    behind = line.weight / outlook.devices
    scene = _scene(board, outlook, place, everybody, behind)
    ranked = []
    for number, (option, waiting) in enumerate(fitting):
        first = futures[waiting.training.run_id]
        rest = tuple([future for future in everybody if future is not first])
        # What the device's own future does not show: it takes others' time on other devices. But
        # beside a gang only a gang on the same devices may come: its slots there are nobody else's.
        elsewhere = outlook.waste(waiting, place.device.model)
        if not place.residents:
            elsewhere += (waiting.training.gpus - 1) * waiting.seconds
        price = cost(scene._replace(waiting=rest), first) + elsewhere * behind
        ranked.append((price, number, option, waiting))
    ranked.sort(key=lambda each: each[:2])
    verdict = tuple(Weighed(option, waiting, price) for price, _, option, waiting in ranked)
    if not place.residents:
        return Verdict(ranked=verdict)
    alone = cost(scene, None, Pause.UNTIL_NEXT_END)
    drained = _drained(board, place, scene, foreseen, futures)
    return Verdict(ranked=verdict, alone=alone, drained=drained)


def _fitting(board: Board, line: Line, place: Place, most: int) -> list[tuple[Option, Waiting]]:
    """Return the first of the line that fit, one of each kind, of one priority."""
    offered = None
    if board.offering is not None:
        offered = {training.run_id for _, training in board.offering}
    found: list[tuple[Option, Waiting]] = []
    kinds = set()
    for waiting in line:
        kind, training = waiting.kind, waiting.training
        if kind in kinds:
            continue
        if found and (waiting.priority != found[0][1].priority or len(found) >= most):
            break
        if offered is not None and training.run_id not in offered:
            continue
        kinds.add(kind)
        option = board.option(kind, training, place)
        if option is not None:
            found.append((option, waiting))
    return found


def _foreseen(
    board: Board,
    outlook: Outlook,
    line: Line,
    place: Place,
    fitting: list[tuple[Option, Waiting]],
    most: int,
) -> list[Waiting]:
    """Return who is thought to come to this place: the first of its share, and all that fit."""
    found = {waiting.training.run_id: waiting for _, waiting in fitting}
    if board.offering is not None:  # nobody else comes before these
        return sorted(found.values())
    most = max(len(found), min(FORESEEN, most, math.ceil(line.count / outlook.devices)))
    for waiting in line:
        if len(found) >= most:
            break
        if waiting.training.gpus == 1 and place.need_of(waiting.kind).possible:
            found[waiting.training.run_id] = waiting
    return sorted(found.values())


def _scene(
    board: Board, outlook: Outlook, place: Place, foreseen: tuple[Future, ...], behind: float
) -> Scene:
    """Return a place and who is foreseen there; `behind` is the weight of its share of the line."""
    limits = board.snapshot.limits
    model = place.device.model
    return Scene(
        running=tuple(outlook.running(resident, model) for resident in place.residents),
        waiting=foreseen,
        slots=board.slots,
        room_mib=memory.capacity_mib(place.device, limits) - memory.foreign_mib(place.device),
        behind=max(0.0, behind - math.fsum([each.weight for each in foreseen])),
        speeds=board.speeds(model),
        profile_seconds=PROFILE_SECONDS,
        profiled=outlook.being_profiled(model) if any(f.blind for f in foreseen) else frozenset(),
    )


def _drained(
    board: Board,
    place: Place,
    scene: Scene,
    foreseen: list[Waiting],
    futures: dict[str, Future],
) -> tuple[float, Waiting] | None:
    """Price keeping the slot free for the first who needs an empty device, if this one is next."""
    for waiting in foreseen:
        future = futures[waiting.training.run_id]
        if (future.mib is not None and not future.blind) or waiting.training.gpus > 1:
            continue
        if not _empties_first(board, place, scene):
            return None
        rest = [each for each in scene.waiting if each is not future]
        price = cost(scene._replace(waiting=(future, *rest)), None, Pause.UNTIL_EMPTY)
        return price, waiting
    return None


def _empties_first(board: Board, place: Place, scene: Scene) -> bool:
    """Tell whether no other open place will be empty sooner, so that not all are kept free."""

    def left(other: Place) -> float:
        durations = board.durations
        return max(durations.of_resident(r, other.device.model).seconds for r in other.residents)

    others = [other for other in board.open_places() if other is not place]
    if any(not other.residents for other in others):
        return False
    mine = max(each.seconds for each in scene.running)
    return all((mine, place.device.index) < (left(other), other.device.index) for other in others)
