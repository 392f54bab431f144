"""A whole step as one graph: the model, what the script does with its results, the gradients, and the optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.model_state.quiet import quiet
from overdrive.seams.patch import plain_of
from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks
from overdrive.seams.torch.internals import storage_owners, version_of
from overdrive.seams.torch.modules import swapped
from overdrive.techniques.compile.cuda_graphs.captured_graph import CapturedGraph, GraphPool
from overdrive.techniques.compile.cuda_graphs.flat import parts_of, unflattened
from overdrive.techniques.compile.cuda_graphs.outside import Outside
from overdrive.techniques.compile.cuda_graphs.recorded_step import RecordedStep
from overdrive.techniques.compile.cuda_graphs.refusal import Refused
from overdrive.techniques.compile.cuda_graphs.sequence import Kind, Noted, Place, StepSequence, as_it_was
from overdrive.techniques.compile.cuda_graphs.steps import RecordedOptimizer


class StepGraph:
    """Makes the steps of one sequence: once carried out in the form in which it is recorded, then recorded, replayed.

    Raises:
        Refused: it cannot be recorded; nothing of the program has changed.
    """

    def __init__(
        self,
        graph_pool: GraphPool,
        sequence: StepSequence,
        model: torch.nn.Module,
        optimizer: RecordedOptimizer,
        call: Callable[[Any, Any], Any],
    ) -> None:
        """`call`: the model's, later than the program made it, with these arguments."""
        self.draws = True  # random numbers
        self.steps = 0  # that it made, recorded or not
        self.trained = sequence.trained
        self._none = sequence.needs_none
        self._given_up = list({id(each): each for each in (*sequence.zeroed, *sequence.trained)}.values())
        self.gradients: list[torch.Tensor] = []
        self.given = [
            torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device=each.device)
            for each in sequence.given
        ]
        count = 1 + max((each.number for each in sequence.calls[0].leaves if type(each) is Place), default=-1)
        self.inputs, self._others = self.given[:count], self.given[count:]
        self._call = call
        self._pool, self._sequence, self._model, self._optimizer = graph_pool, sequence, model, optimizer
        self._own = own_tensors(model)
        # Leaves of their own, of the same memory (see `calls`).
        self._aliases = {
            id(each): each.detach().requires_grad_(each.requires_grad)
            for each in self._own
            if isinstance(each, torch.nn.Parameter)
        }
        self._step: RecordedStep | None = None
        self._captured: CapturedGraph | None = None
        self._warm = False
        self._values: list[torch.Tensor] = []
        self._storages: list[Any] = []  # of the gradients
        self._holders: list[int | None] = []  # how many have the gradients and their memory: ours

    @property
    def recorded(self) -> bool:
        return self._captured is not None

    def fits(self) -> bool:
        """Whether the step that the program is about to make is this one, as far as the optimizer has a say.

        Raises:
            Refused: it will not be this one again.
        """
        if any(map(gradient_hooks, self.trained)) or any(map(accumulation_hooks, self.trained)):
            raise Refused("the program has hooks on gradients")
        if any(each.grad is not None for each in self._none):
            return False
        if self._step is None:
            self._step = self._optimizer.for_whole_step(self.trained)
        return self._optimizer.still_fits(self._step)

    def copy_inputs(self, given: list[torch.Tensor]) -> None:
        """Of the model."""
        if given:
            torch._foreach_copy_(self.inputs, given)

    def copy_others(self, given: list[torch.Tensor]) -> None:
        if given:
            torch._foreach_copy_(self._others, given)

    def run(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """Make the step. The inputs of the model are there, `given` is what it is given besides.

        Returns: all results, which the next step overwrites.
        """
        assert self._step is not None
        self.copy_others(given)
        self._step.set_rates()
        if self._captured is not None:
            self._captured.replay()
        elif not self._warm:
            self._carry_out()
        else:
            captured = self._pool.captured()
            self._values, self.gradients = self._taken_apart(captured.record(self._work))
            self._storages = [each.untyped_storage() for each in self.gradients]
            self._holders = self._held_now()
            self._captured = captured
            captured.replay()
        for each, gradient in zip(self.trained, self.gradients, strict=True):
            each.grad = gradient
        self.steps += 1
        return self._values

    def gradients_are_kept(self) -> bool:
        """Whether the program has them of an earlier step, which are given up by the parameters here."""
        for each in self._given_up:
            each.grad = None
        return self._captured is not None and self._held_now() != self._holders

    def _held_now(self) -> list[int | None]:
        return [*map(sys.getrefcount, self.gradients), *map(storage_owners, self._storages)]

    def _carry_out(self) -> None:
        assert self._step is not None
        outside, state = Outside(self._model), self._pool.random_state()
        touched = [*self._step.touched(), *self._model.buffers()]
        # In main memory: beside themselves on the GPU, parameters and state would be the run's peak.
        before = [each.detach().to("cpu", copy=True) for each in touched]
        versions = [version_of(each) for each in self.given]
        try:
            with self._pool.watched() as noted, quiet(outside.state.reach.loggers) as said:
                made = self._work()
            reasons = [*noted, *("the model prints in its call" for _ in said), outside.changes()]
            if [version_of(each) for each in self.given] != versions:
                reasons.append("the model changes its inputs")
            if not self._step.state_is_kept():
                reasons.append("the optimizer makes its state anew in each step")
            if any(reasons):
                raise Refused(next(filter(None, reasons)))
        except Exception:
            outside.restore()
            self._pool.set_random_state(state)
            with torch.no_grad():
                for each, value in zip(touched, before, strict=True):
                    each.copy_(value)
            raise
        self.draws = not torch.equal(state, self._pool.random_state())
        self._values, self.gradients = self._taken_apart(made)
        self._warm = True

    def _taken_apart(self, made: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        count = len(self._sequence.made)
        return made[:count], made[count:]

    # -- the work ---------------------------------------------------------------------------------

    def _work(self) -> list[torch.Tensor]:
        assert self._step is not None
        made: list[torch.Tensor] = []
        try:
            for each in self._sequence.calls:
                if each.kind is not Kind.ZEROED:
                    with as_it_was(each.around, cached=False):
                        self._make(each, made)
            gradients = [self._alias(each).grad for each in self.trained]
        finally:
            for alias in self._aliases.values():
                alias.grad = None
        if any(each is None or each.layout is not torch.strided for each in gradients):
            raise Refused("a gradient is sparse, or missing")
        there = [each for each in gradients if each is not None]
        with torch.no_grad():
            self._step.work_on(there)
        return [*(each.detach() for each in made), *there]

    def _make(self, noted: Noted, made: list[torch.Tensor]) -> None:
        leaves = [self._tensor(each, made) if type(each) is Place else each for each in noted.leaves]
        if noted.kind is Kind.BACKWARD:
            self._send(leaves[0])
            return
        args, kwargs = unflattened(leaves, noted.form)
        if noted.kind is Kind.MODEL:
            with swapped(list(self._model.modules()), self._aliases):
                result = self._call(args, kwargs)
        elif noted.kind is Kind.CLIPPED:
            clip = plain_of(torch.nn.utils.clip_grad_norm_)
            result = clip([self._aliases[each] for each in noted.what], *args, **kwargs)
        else:
            result = noted.what(*args, **kwargs)
        for place, part in zip(noted.results, parts_of(result)[0], strict=True):
            if type(place) is Place and place == ("made", len(made)):
                if part.requires_grad is not self._sequence.made[len(made)].differentiable:
                    raise Refused("what has a gradient in the program has none in a recording")
                made.append(part)

    def _send(self, loss: torch.Tensor) -> None:
        aliases = [self._alias(each) for each in self.trained]
        for each, gradient in zip(aliases, torch.autograd.grad(loss, aliases, allow_unused=True), strict=True):
            each.grad = gradient

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._aliases.get(id(tensor), tensor)

    def _tensor(self, place: Place, made: list[torch.Tensor]) -> torch.Tensor:
        of, number = place
        if of == "made":
            return made[number]
        return self.given[number] if of == "given" else self._alias(self._own[number])


def own_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
