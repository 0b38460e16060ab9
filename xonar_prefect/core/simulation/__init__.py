"""A virtual clock around the same `decide()` that the worker calls."""

from xonar_prefect.core.simulation.clock import simulate
from xonar_prefect.core.simulation.result import Loss, Outcome, Run
from xonar_prefect.core.simulation.truth import MeasuredPairs, ProcessorSharing, Truth
from xonar_prefect.core.simulation.world import Learnt, Submission, World

__all__ = [
    "Learnt",
    "Loss",
    "MeasuredPairs",
    "Outcome",
    "ProcessorSharing",
    "Run",
    "Submission",
    "Truth",
    "World",
    "simulate",
]
