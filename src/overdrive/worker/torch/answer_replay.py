"""How the calls of a PyTorch program that trains nothing are recorded, given again and answered in fp64.

The reference run records what its model is given in each chosen call, and computes the answer in fp64. A candidate
gives its model the recorded inputs in that call, with the same random numbers, and its answer is compared. So calls
that depend on each other (a token on those before it) do not part for an answer that was all but a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from overdrive.core.rng import States
from overdrive.seams.hub import Seams
from overdrive.seams.step_counter import StepCounter
from overdrive.seams.torch.control import compute_carefully
from overdrive.worker.replay import CALL, Arrays, Replay
from overdrive.worker.torch.fp64 import computing_in_double, widen
from overdrive.worker.torch.generators import plain_states, restore
from overdrive.worker.torch.replay import kept
from overdrive.worker.torch.sketch import sketch

_MOST_TENSORS = 16  # of an answer that are compared
_MOST_OF_AN_ANSWER = 1 << 20  # elements of a tensor that are kept of one call, where samples are compared one by one


class AnswerSteps:
    """See `worker.replay.Steps`. The program as it is: a step is a call of its leading model, and those of others until
    its next."""

    needs = ""
    open_ended = True

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._counter = StepCounter()
        self._stands_in: Any = None  # of the model whose outermost call has begun
        self._model: Any = None  # whose call is being made
        self._leaves: list[Any] = []  # what it is given
        self._is_replaced = False  # by what was recorded: the program itself would give something else
        self._call = 1  # within the step
        self._bytes_of_others = self._most_of_others = 0  # that other models were given in a step
        self._noted: Arrays = {}
        self._inputs: list[float] = []
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters with what they held

    def watch(self, seams: Seams, replay: Replay) -> None:
        self._replay = replay
        seams.step_begins.subscribe(self._begins)
        seams.step_ends.subscribe(self._counter.tick)
        # Outside of all techniques: one of them may answer without calling the model at all.
        seams.model_called.subscribe(self._called)

    def _begins(self, stands_in: Any) -> None:
        self._stands_in = stands_in

    def settle(self) -> None:
        """All that a call depends on is in hand."""

    def size(self) -> int:
        return self._given() + self._most_of_others

    def _given(self) -> int:
        """Bytes of what the call under way is given."""
        return sum(each.nbytes for each in self._tensors())

    def save(self, path: Path) -> None:
        tensors = [each.detach().clone() for each in self._tensors()]
        torch.save({"inputs": tensors, "rng": plain_states()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True, map_location="cpu")
        recorded, mine = saved["inputs"], self._tensors()
        alike = [(each.shape, each.dtype) for each in mine] == [(each.shape, each.dtype) for each in recorded]
        same = alike and all(torch.equal(each.cpu(), other) for each, other in zip(mine, recorded, strict=True))
        if alike and not same:  # where the form is another, so is the sketch, and the call says nothing
            self._is_replaced = True  # what the model writes to a list or cache of the program's own is lost then
            following = iter(recorded)
            self._leaves = [
                next(following).to(each.device) if isinstance(each, torch.Tensor) else each for each in self._leaves
            ]
        restore(saved["rng"])

    def disturb(self, share: float, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self._model.parameters():
                if parameter.is_floating_point():
                    self._moved.append((parameter, parameter.detach().clone()))
                    parameter.mul_(1 + share * torch.randn(parameter.shape, generator=chance).to(parameter))

    def values(self) -> Arrays:
        """A call is compared by its answer alone; that it changes no weights the digest log tells."""
        return {}

    def begin(self) -> None:
        """What is given is noted with each call."""

    def results(self) -> Arrays:
        return self._noted

    def inputs(self) -> list[float]:
        return self._inputs

    def end(self) -> None:
        self._noted, self._inputs = {}, []

    def _tensors(self) -> list[torch.Tensor]:
        return [each for each in self._leaves if isinstance(each, torch.Tensor)]

    def _called(self, module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._replay is not None
        stands_in, self._stands_in = self._stands_in, None  # none: of a loss, or within a fetch
        if stands_in is None:
            return call(*args, **kwargs)
        self._model = module
        self._leaves, spec = tree_flatten((args, kwargs))
        try:
            if self._counter.leads(stands_in):
                self._call, self._bytes_of_others = 1, 0
                self._replay.stands(self._counter.steps)
            else:
                self._another_call()
            if not self._replay.now:
                return call(*args, **kwargs)
            self._inputs += self._sketched()
            if self._is_replaced:
                args, kwargs = tree_unflatten(self._leaves, spec)
            return self._answer(module, call, args, kwargs)
        finally:
            self._put_back()
            self._model, self._leaves, self._is_replaced = None, [], False

    def _another_call(self) -> None:
        """Of another model than the leading one."""
        assert self._replay is not None
        self._call += 1
        self._bytes_of_others += self._given()
        self._most_of_others = max(self._most_of_others, self._bytes_of_others)
        if self._replay.now:
            self._replay.goes_on(self._call)

    def _sketched(self) -> list[float]:
        first = next(iter(self._tensors()), None)
        return [] if first is None else sketch(first)

    def _put_back(self) -> None:
        """What was disturbed for the length of a call."""
        with torch.no_grad():
            for parameter, before in self._moved:
                parameter.copy_(before)
        self._moved = []

    def _answer(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        self._note(module, result)
        return result

    def _note(self, module: Any, result: Any) -> None:
        tensors = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)][:_MOST_TENSORS]
        leads = self._call == 1
        whose, which = (
            ("the model", "") if leads else (f"another model, {type(module).__name__}", f"{CALL}{self._call}")
        )
        for number, each in enumerate(tensors, start=1):
            name = whose if len(tensors) == 1 else f"{whose} (tensor {number})"
            self._noted[f"output {name}{which}"] = self._kept(torch.view_as_real(each) if each.is_complex() else each)

    def _kept(self, tensor: torch.Tensor) -> Any:
        return kept(tensor)


class AnswersInDouble(AnswerSteps):
    """The chosen calls are made as the program makes them, and then once more in fp64, whose answer is the target."""

    def _answer(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        chance, before = States.now(), [(each, each.detach().clone()) for each in module.buffers()]
        result = call(*args, **kwargs)
        after, chance_after = [(each, each.detach().clone()) for each, _ in before], States.now()
        chance.restore()
        _put(before)
        try:
            with computing_in_double(module):
                self._note(module, call(*tree_map(widen, args), **tree_map(widen, kwargs)))
        finally:
            _put(after)
            chance_after.restore()
        return result


class CarefulAnswers(AnswerSteps):
    """In the program's own precision, as carefully as it can."""

    def watch(self, seams: Seams, replay: Replay) -> None:
        super().watch(seams, replay)
        compute_carefully()


class AnswersBySample(AnswerSteps):
    """As the program makes them, and kept as `worker.agreement` compares them: samples x places x classes."""

    def _kept(self, tensor: torch.Tensor) -> Any:
        found = tensor.detach()
        if not found.is_floating_point():
            return _few_places(found.reshape(*(found.shape[:1] or (1,)), -1, 1)).to("cpu", torch.int64).numpy()
        if found.dim() < 2:
            found = found.reshape(-1, 1, 1)
        elif found.dim() == 2:
            found = found[:, None]
        elif found.dim() > 3:  # pictures: N x C x H x W
            found = found.movedim(1, -1).flatten(1, -2)
        return _few_places(found).to("cpu", torch.float32).numpy()


def _few_places(answer: torch.Tensor) -> torch.Tensor:
    """With fewer of the places of each sample, evenly spaced, and at last with fewer samples, where they are many."""
    for axis in (1, 0):
        every = -(-answer.numel() // _MOST_OF_AN_ANSWER)
        if every > 1:
            answer = answer[(slice(None),) * axis + (slice(None, None, min(every, answer.shape[axis])),)]
    return answer


def _put(contents: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, held in contents:
            tensor.data.copy_(held)


def steps_for(role: str) -> AnswerSteps:
    kinds: dict[str, type[AnswerSteps]] = {
        "reference": AnswersInDouble,
        "careful reference": CarefulAnswers,
        "answers": AnswersBySample,
        "agreement": AnswersBySample,
    }
    return kinds.get(role, AnswerSteps)()
