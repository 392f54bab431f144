"""Counts training steps in programs with one optimizer or several."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

# A leading optimizer that is silent for this many steps of others has been replaced (a second phase).
_PATIENCE = 16


class StepCounter:
    """One training step is one step of the leading optimizer: the first that stepped, as long as it goes on.

    So a GAN's pair of steps (discriminator, generator) is one step of training, and a program that
    makes a new optimizer for a second phase goes on being counted.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.ticked_at = 0.0  # time.perf_counter() when the last of them was complete
        self._leader: Callable[[], Any] = lambda: None
        self._others = 0

    def leads(self, optimizer: Any) -> bool:
        """Whether a step of `optimizer` would complete a training step."""
        leader = self._leader()
        return leader is None or leader is optimizer or self._others >= _PATIENCE

    def tick(self, optimizer: Any) -> bool:
        """Tell that `optimizer` stepped; True where this completes a training step."""
        if self._leader() is not optimizer:
            if not self.leads(optimizer):
                self._others += 1
                return False
            self._leader = weakref.ref(optimizer)
        self._others = 0
        self.steps += 1
        self.ticked_at = time.perf_counter()
        return True


class Iterations:
    """Tells when an iteration of the training loop is over: when the last of its optimizers has stepped.

    A GAN's step ends, for the counter, in the midst of an iteration, with a graph of the generator still to be
    used. Where there are several optimizers, the first iteration shows in which order they step.
    """

    def __init__(self) -> None:
        self.clock = StepCounter()
        self._order: list[int] = []  # ids of the optimizers that stepped in this iteration
        self._last = 0

    def over(self, optimizer: Any, alone: bool) -> bool:
        """Tell that `optimizer` stepped; `alone`: there is no other. The clock then says how many are over."""
        leads = self.clock.tick(optimizer)
        if alone:
            return leads
        if leads:
            self._last = self._order[-1] if self._order else 0
            self._order = []
        self._order.append(id(optimizer))
        return self._last == id(optimizer)
