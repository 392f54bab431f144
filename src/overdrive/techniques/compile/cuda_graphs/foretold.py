"""A step of which it is known what it will be: its sequence of calls, and the graph that makes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from overdrive.seams.torch.internals import storage_id
from overdrive.seams.torch.models import call_inside
from overdrive.techniques.compile.cuda_graphs.captured_graph import GraphPool
from overdrive.techniques.compile.cuda_graphs.held_step import NOTHING, HeldStep, Placeholders
from overdrive.techniques.compile.cuda_graphs.refusal import Refused
from overdrive.techniques.compile.cuda_graphs.sequence import Kind, StepSequence
from overdrive.techniques.compile.cuda_graphs.step_graph import StepGraph, own_tensors
from overdrive.techniques.compile.cuda_graphs.steps import RecordedOptimizer

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


class ForetoldStep:
    def __init__(
        self, seams: Seams, owner: str, pool: GraphPool, sequence: StepSequence, optimizer: RecordedOptimizer
    ) -> None:
        """`owner`: of the subscriptions around the model's call that are not made again."""
        self.recorded = sequence.model
        self._seams, self._owner, self._pool, self._sequence = seams, owner, pool, sequence
        self._own = own_tensors(self.recorded.module)
        self._placeholders = Placeholders(sequence.made)
        self._memory = {*map(storage_id, self._own), *self._placeholders.memory}
        self._shared = [number for number, kind in enumerate(sequence.made) if not kind.apart]
        self.graph = StepGraph(pool, sequence, self.recorded.module, optimizer, self._call)

    def is_of(self, recorded: Any, kind: Any) -> bool:
        return recorded is self.recorded and bool(kind == self._sequence.kind)

    def is_out_of_date(self, recorded: Any) -> bool:
        """Whether its model is another one now."""
        return recorded is self.recorded and recorded.looks != self._sequence.kind[0]

    def hold(self, args: Any, kwargs: Any) -> tuple[HeldStep | None, Any]:
        """What the script is given of its model's call."""
        held = HeldStep(self._sequence, self._own, self._memory, self._placeholders)
        answer = held.answer(Kind.MODEL, self.recorded, self._call_as_it_was, args, kwargs)
        if answer is NOTHING:
            return None, NOTHING
        held.stream = self._pool.stream()
        if self.graph.draws:
            held.random_state = self._pool.random_state()
        self.graph.copy_inputs(held.given)
        if self.graph.recorded and self._seams.inputs_copied.subscribers:
            self._seams.inputs_copied.publish(self.recorded.module, self.graph.inputs)
        return held, answer

    def make(self, held: HeldStep, optimizer: Any) -> str:
        """The step, of which all calls have been held; what stood for results has its values then.

        Returns: why it is another one, and was not made; else nothing.

        Raises:
            Refused: and none will be this one.
        """
        if not held.complete or optimizer is not self._sequence.optimizer:
            return "the optimizer steps earlier than before"
        if held.random_state is not None and not torch.equal(held.random_state, self._pool.random_state()):
            return "the program has set the state of the random generator"
        if held.stream != self._pool.stream():
            return "the program steps on another stream than it calls its model on"
        if not self.graph.fits():
            return "the optimizer's settings or state are others"
        if any(map(held.is_kept, self._shared)):
            return "the program keeps parts of a tensor beside it"
        if self.graph.gradients_are_kept():
            raise Refused("the program keeps gradients of earlier steps")
        held.give(self.graph.run(held.given[len(self.graph.inputs) :]))
        return ""

    def carry_out(self, held: HeldStep) -> None:
        """The calls so far, for real, with the random numbers that they would have drawn."""
        if held.random_state is None:
            held.carry_out()
            return
        now = self._pool.random_state()
        self._pool.set_random_state(held.random_state)
        held.carry_out()
        if not torch.equal(now, held.random_state):  # the program has set it
            self._pool.set_random_state(now)

    def _call(self, args: Any, kwargs: Any, undone: bool = False) -> Any:
        return call_inside(self._seams, self._owner, self.recorded.module, args, kwargs, undone)

    def _call_as_it_was(self, *args: Any, **kwargs: Any) -> Any:
        return self.recorded.call_as_it_was(partial(self._call, undone=True), args, kwargs)
