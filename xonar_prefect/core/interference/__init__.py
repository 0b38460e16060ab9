"""How co-located trainings slow each other down: a queueing prior that observations correct."""

from xonar_prefect.core.interference.likeness import Likeness, likeness_of
from xonar_prefect.core.interference.load import Load
from xonar_prefect.core.interference.model import InterferenceModel, KeptModel
from xonar_prefect.core.interference.queueing import (
    FIRST_SHARING_COST,
    mean_number_active,
    prior_slowdown,
)
from xonar_prefect.core.interference.speeds import SpeedTable

__all__ = [
    "FIRST_SHARING_COST",
    "InterferenceModel",
    "KeptModel",
    "Likeness",
    "Load",
    "SpeedTable",
    "likeness_of",
    "mean_number_active",
    "prior_slowdown",
]
