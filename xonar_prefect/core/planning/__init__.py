"""What all policies share: a board on which trainings are placed one by one.

A policy is a rule of choice over the options of a free place; the board keeps what must always
hold - memory, slots, limits, gangs, exclusive trainings, `max_wait` - and explains the rest.
"""

from xonar_prefect.core.planning.board import Board
from xonar_prefect.core.planning.kinds import Kind
from xonar_prefect.core.planning.places import Option, Place
from xonar_prefect.core.planning.plan import (
    Choice,
    Choose,
    Fill,
    carry_out,
    each_place,
    first_in_queue,
    plan,
)

__all__ = [
    "Board",
    "Choice",
    "Choose",
    "Fill",
    "Kind",
    "Option",
    "Place",
    "carry_out",
    "each_place",
    "first_in_queue",
    "plan",
]
