"""The default policy: whoever lowers the expected sum of completion times most comes next.

For each free slot it weighs the most urgent trainings that fit, keeping the slot free so that the
running one stays alone, and keeping it free so that the device becomes empty for one that needs an
empty device, as an unprofiled one does. Each is priced by playing the device's future through (see
`core.lookahead`), with remaining times and interference together. The cheapest is done.

Urgent are the trainings of the highest priority that waits and fits, and among them those that
need the least device time, over the weight of their owner. Where many places are open at once,
they are filled one by one, and fewer are weighed for each, so that the cost of a decision stays
bounded.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from xonar_prefect.core.decisions import Decision
from xonar_prefect.core.models import Snapshot
from xonar_prefect.core.planning import Board, Place, carry_out, plan
from xonar_prefect.core.policies.adaptive.explaining import chosen, kept_free
from xonar_prefect.core.policies.adaptive.outlook import Outlook
from xonar_prefect.core.policies.adaptive.weighing import Verdict, weigh

WEIGHED = 12
"""Trainings that are weighed for a slot at most."""
WEIGHED_IN_ALL = 300
"""Trainings that are weighed in one decision, over all open places, as far as that is enough."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Chooses by what a choice does to the expected sum of completion times."""

    name: str = "adaptive"

    def decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return exactly one decision per held training, in queue order."""
        return plan(snapshot, fill)


def fill(board: Board) -> None:
    """Fill the open places, empty and fast ones first, then where most is gained by it."""
    outlook = Outlook(board)
    weighed: dict[str, Verdict] = {}

    def emptiest_first(place: Place) -> tuple[int, float, int, str]:
        device = place.device
        speed = outlook.relative_time(device.model)
        return (len(place.residents), speed, device.index, device.id)

    places = sorted(board.open_places(), key=emptiest_first)
    for place in places:
        place.kept_free = None
    most = max(1, min(WEIGHED, WEIGHED_IN_ALL // max(1, len(places))))
    one_by_one = len(places) > WEIGHED
    while places and next(board.offered(), None) is not None:
        considered = places[:1] if one_by_one or not places[0].residents else list(places)
        for place in considered:
            if place.device.id not in weighed:
                weighed[place.device.id] = weigh(board, outlook, place, most)
        best = max(
            considered, key=lambda place: (weighed[place.device.id].gain, -place.device.index)
        )
        verdict = weighed[best.device.id]
        if verdict.chosen is None:
            for place in considered:
                place.kept_free = kept_free(place, weighed.pop(place.device.id))
                places.remove(place)
            continue
        if not carry_out(board, chosen(board, best, verdict)):
            weighed.clear()  # a limit is used up: it may be the same for others
            continue
        taken = verdict.chosen.option
        weighed = {place: each for place, each in weighed.items() if each.still_holds(taken)}
        for place in taken.places:
            weighed.pop(place.device.id, None)
            places.remove(place)
            if len(place.residents) < board.slots:
                insort(places, place, key=emptiest_first)
