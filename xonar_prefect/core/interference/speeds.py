"""How fast the trainings of a set run on one device model, each set worked out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xonar_prefect.core.interference.load import Load
from xonar_prefect.core.interference.part import Part, is_known
from xonar_prefect.core.models import Training

if TYPE_CHECKING:
    from xonar_prefect.core.interference.model import InterferenceModel


class SpeedTable(dict[tuple[int, ...], tuple[float, ...]]):
    """The speeds of sets of trainings; trainings are told apart by the numbers of their loads.

    Of each: 1 alone, 1 / expected slowdown beside the others. It is a dictionary, since nothing is
    asked for more often.
    """

    def __init__(self, model: InterferenceModel, device_model: str) -> None:
        """Take what foretells slowdowns, and the device model."""
        super().__init__()
        self._model = model
        self._device_model = device_model
        self._parts: list[Part] = []
        self._numbers: dict[object, int] = {}

    def load_of(self, training: Training) -> int:
        """Return the number of a training's load."""
        profile = training.profiles.get(self._device_model)
        fraction = None if profile is None else profile.active_fraction
        key = training.profile_key
        # of one key all parameters that shape the work are the same
        same: object = (key, fraction)
        if key is None and training.parameters:
            same = Load.of(training, self._device_model)
        number = self._numbers.get(same)
        if number is None:
            number = self._numbers[same] = len(self._parts)
            load = Load.of(training, self._device_model)
            self._parts.append(self._model.part(load, self._device_model))
        return number

    def predict(self, loads: tuple[int, ...]) -> float | None:
        """Return the slowdown of the first of a set; None where it would be a mere guess."""
        own, *others = [self._parts[load] for load in loads]
        return 1.0 / self[loads][0] if is_known(own, others) else None

    def __missing__(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        """Work out the speeds of a set that nobody has asked for yet."""
        speeds = self[loads] = self._work_out(loads)
        return speeds

    def _work_out(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        if len(loads) == 1:
            return (1.0,)
        parts = [self._parts[load] for load in loads]
        return tuple(
            [
                1.0
                / self._model.slowdown(
                    part, [*parts[:place], *parts[place + 1 :]], self._device_model
                )
                for place, part in enumerate(parts)
            ]
        )
