"""Measures a training's steps: how long they take, how active they are, what memory they need."""

from xonar_prefect.profiling.marks import step, steps
from xonar_prefect.profiling.window import Window

__all__ = ["Window", "step", "steps"]
