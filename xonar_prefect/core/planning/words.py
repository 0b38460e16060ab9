"""Sentences of decisions: each says why, with the arithmetic in it."""

from __future__ import annotations

from collections.abc import Sequence

from xonar_prefect.core import memory
from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Option, Place

MOST_ALTERNATIVES = 5
MOST_NAMES = 4


def percent(fraction: float) -> str:
    """Return a fraction in per cent.

    >>> percent(0.62)
    '62 %'
    """
    return f"{100 * fraction:.0f} %"


def listing(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, cut short where there are many.

    >>> listing(["GPU 0"]), listing(["GPU 0", "GPU 1"])
    ('GPU 0', 'GPU 0 and GPU 1')
    >>> listing(["a", "b", "c", "d", "e", "f"])
    'a, b, c and 3 others'
    """
    if len(names) > MOST_NAMES:
        shown = names[: MOST_NAMES - 1]
        return f"{', '.join(shown)} and {len(names) - len(shown)} others"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def quoted(trainings: Sequence[Training]) -> str:
    """Return the names of trainings, quoted, as a list in a sentence."""
    return listing([f"'{training.name}'" for training in trainings])


def where(places: Sequence[Place]) -> str:
    """Return the names of places as a list in a sentence."""
    return listing([place.label for place in places])


def release(option: Option, why: str, predicted_slowdown: float | None) -> str:
    """Return why a training is released, `why` being the rule's own words."""
    empty = "which is empty" if len(option.places) == 1 else "which are empty"
    beside = f" beside {quoted(option.partners)}" if option.partners else f", {empty}"
    parts = [why, _memory_of(option)]
    if option.partners:
        parts.append(
            "slowdown not predictable yet"
            if predicted_slowdown is None
            else f"predicted slowdown {predicted_slowdown:.2f}"
        )
    return f"Released to {where(option.places)}{beside}: {', '.join(parts)}."


def _memory_of(option: Option) -> str:
    if option.places[0].device.memory_mib == memory.UNKNOWN_MEMORY_MIB:
        return "the device's memory unknown"
    each = " on each" if len(option.places) > 1 else ""
    if option.request_mib is not None:
        return f"{option.request_mib} of {option.available_mib} MiB available{each}"
    need = option.places[0].need_of(option.kind)
    if need.known:
        why = f", as {need.why}" if need.why else ""
        return f"all {option.available_mib} MiB available{each}{why}"
    return f"memory peak unknown, so all {option.available_mib} MiB available{each}"


def obstacle(
    code: ReasonCode, kind: Kind, place: Place, *, slots: int, limits: Limits, who: str
) -> str:
    """Return what keeps a training from a place, as a sentence.

    Args:
        code: The obstacle.
        kind: The training's kind.
        place: The place.
        slots: Trainings that a device may take.
        limits: The rules.
        who: The subject, as in "this training" or "'bert'".
    """
    there = [resident.training for resident in place.residents]
    if code in (ReasonCode.NO_DEVICE, ReasonCode.NO_FREE_SLOT):
        return closed(code, place, slots=slots)
    if code is ReasonCode.OLDER_TRAINING_WAITS and place.reserved_for:
        return (
            f"{place.label} is reserved for '{place.reserved_for[0].name}', which was submitted "
            f"earlier and has waited longer than {limits.max_wait_seconds:g} s."
        )
    if code is ReasonCode.EXCLUSIVE:
        alone = [training for training in there if training.exclusive]
        if alone:
            return f"{quoted(alone)} on {place.label} shares its device with nobody."
        return f"{place.label} has {quoted(there)}, but {who} shares its device with nobody."
    if code is ReasonCode.PARTNER_UNPROFILED:
        return (
            f"{place.label} has {quoted(place.unprofiled)}, whose memory peak is not known yet; "
            "nobody joins until it is."
        )
    if code is ReasonCode.KNOWN_TO_CLASH:
        clashing = quoted(place.clashing(kind.trainings[0]))
        return (
            f"{place.label} has {clashing}, and such a training ran out of memory beside {who} "
            "before, whatever they had requested."
        )
    if code is ReasonCode.GANG_INCOMPLETE:
        return _gang(kind.trainings[0], place, who)
    return memory.shortage(place.need_of(kind), place.device, limits, who)


def closed(code: ReasonCode, place: Place, *, slots: int) -> str:
    """Return what keeps everybody from a place, as a sentence."""
    if code is ReasonCode.NO_DEVICE:
        return f"{place.label} is unavailable: {_unavailable_because(place)}."
    return f"{_full(place, slots)}."


def all_full(places: Sequence[Place], *, slots: int) -> str:
    """Return who is on each of some devices without a free slot, as a sentence."""
    parts = [_full(place, slots) for place in places[:MOST_NAMES]]
    rest = len(places) - len(parts)
    if rest:
        parts.append(f"{rest} more {'device is' if rest == 1 else 'devices are'} full too")
    return f"{'; '.join(parts)}."


def all_unavailable(places: Sequence[Place]) -> str:
    """Return why each of some devices takes nothing, as a sentence; equal reasons are said once."""
    by_reason: dict[str, list[Place]] = {}
    for place in places:
        by_reason.setdefault(_unavailable_because(place), []).append(place)
    parts = [
        f"{where(those)} {'is' if len(those) == 1 else 'are'} unavailable: {reason}"
        for reason, those in list(by_reason.items())[:MOST_NAMES]
    ]
    rest = sum(len(those) for those in list(by_reason.values())[MOST_NAMES:])
    if rest:
        parts.append(f"{rest} more {'device is' if rest == 1 else 'devices are'} unavailable too")
    return f"{'; '.join(parts)}."


def _unavailable_because(place: Place) -> str:
    return (place.device.unavailable or "").rstrip(". ")


def _full(place: Place, slots: int) -> str:
    there = [resident.training for resident in place.residents]
    return f"{place.label} has {len(there)} of {slots} trainings: {quoted(there)}"


def _gang(training: Training, place: Place, who: str) -> str:
    if place.device.is_slice:
        return (
            f"{place.label} is a MIG slice, of which CUDA shows a process only one, but {who} "
            f"needs {training.gpus} devices at once."
        )
    gangs = [r.training for r in place.residents if len(r.devices) > 1]
    if gangs:
        return (
            f"{quoted(gangs)} has {place.label} together with other devices, and only a training "
            "on exactly the same devices may join it."
        )
    if not place.residents:
        return f"{place.label} is empty, but {who} needs {training.gpus} such devices at once."
    there = quoted([resident.training for resident in place.residents])
    return (
        f"{place.label} has {there}, but {who} needs {training.gpus} devices at once, all of them "
        "empty or with the same partners."
    )
