"""Which optimizer's steps are the steps of the training, and what interrupts one."""

from __future__ import annotations

import weakref


class LeadingOptimizer:
    """Tells steps of the training from those of the other optimizers of a process.

    The first optimizer seen leads. Another one takes the lead when it steps twice without the
    leader in between: so the two optimizers of a GAN make one step together, however often each
    of them steps, and models trained in turn lead in turn.
    """

    def __init__(self) -> None:
        self._leader: weakref.ref[object] | None = None
        self._since_its_step: set[int] = set()

    @property
    def leader(self) -> object | None:
        """The optimizer that leads; None before the first step, and when it is gone."""
        return None if self._leader is None else self._leader()

    def stepped(self, optimizer: object) -> bool:
        """Note that an optimizer has stepped; whether that was a step of the training."""
        leader = self.leader
        takes_the_lead = leader is None or id(optimizer) in self._since_its_step
        if optimizer is not leader and not takes_the_lead:
            self._since_its_step.add(id(optimizer))
            return False
        if takes_the_lead:
            self._leader = weakref.ref(optimizer)
        self._since_its_step.clear()
        return True


class Interruptions:
    """Tells what only sometimes comes between two steps from what belongs to each of them.

    Validation and checkpoints come now and then, so the step that they interrupt says nothing
    about the others. What happens in every step (a policy that acts in evaluation mode between two
    updates) is a part of it.
    """

    def __init__(self) -> None:
        self._in_last_step = False
        self._in_this_step = False

    def interrupts(self) -> bool:
        """Note that something like it begins; whether it interrupts the step."""
        is_first = not self._in_this_step
        self._in_this_step = True
        return is_first and not self._in_last_step

    def stepped(self) -> None:
        """Note that a step is over."""
        self._in_last_step, self._in_this_step = self._in_this_step, False
