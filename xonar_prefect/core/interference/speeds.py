"""How fast the trainings of a set run on one device model, each set worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xonar_prefect.core.interference.load import Load
from xonar_prefect.core.models import Training


class SpeedTable(dict[tuple[int, ...], tuple[float, ...]]):
    """The speeds of sets of trainings; trainings are told apart by the numbers of their loads.

    Of each: 1 alone, 1 / expected slowdown beside the others. It is a dictionary, since nothing is
    asked for more often.
    """

    def __init__(
        self, expect: Callable[[Load, Sequence[Load], str], float], device_model: str
    ) -> None:
        """Take what foretells slowdowns, and the device model."""
        super().__init__()
        self._expect = expect
        self._device_model = device_model
        self._loads: list[Load] = []
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
            number = self._numbers[same] = len(self._loads)
            self._loads.append(Load.of(training, self._device_model))
        return number

    def __missing__(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        """Work out the speeds of a set that nobody has asked for yet."""
        speeds = self[loads] = self._work_out(loads)
        return speeds

    def _work_out(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        if len(loads) == 1:
            return (1.0,)
        those = [self._loads[load] for load in loads]
        return tuple(
            1.0 / self._expect(load, [*those[:place], *those[place + 1 :]], self._device_model)
            for place, load in enumerate(those)
        )
