"""How the calls of a PyTorch program that trains nothing are recorded, given again and answered in fp64 (see
`worker.answer_replay`). The fp64 answer is computed beside the program's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from overdrive.core.by_identity import ByIdentity
from overdrive.core.rng import States
from overdrive.core.trial_spec import BY_SAMPLE
from overdrive.model_state.state import State
from overdrive.seams.hub import Seams
from overdrive.seams.torch.layouts import bytes_of, in_reals
from overdrive.worker import answer_replay
from overdrive.worker.answer_replay import few_places
from overdrive.worker.replay import MOST_ELEMENTS
from overdrive.worker.torch.disturbing import disturb
from overdrive.worker.torch.fp64 import computing_in_double, wide_copies
from overdrive.worker.torch.generators import plain_states, restore
from overdrive.worker.torch.replay import kept
from overdrive.worker.torch.sketch import sketch


class AnswerSteps(answer_replay.AnswerSteps):
    """The program as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters with what they held

    def listen(self, seams: Seams) -> None:
        seams.model_called.subscribe(self.called)

    def flat(self, thing: Any) -> list[Any]:
        return tree_leaves(thing)

    def unflat(self, like: Any, leaves: list[Any]) -> Any:
        return tree_unflatten(leaves, tree_flatten(like)[1])

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor)

    def bytes_of(self, tensor: torch.Tensor) -> int:
        return bytes_of(tensor)

    def sketch(self, tensor: torch.Tensor) -> list[float]:
        return sketch(tensor)

    def kept(self, tensor: torch.Tensor, share: float) -> Any:
        return self._array(in_reals(tensor.detach()), share)

    def _array(self, tensor: torch.Tensor, share: float) -> Any:
        return kept(tensor, int(share * MOST_ELEMENTS) or 1)

    def save(self, path: Path) -> None:
        tensors = [each.detach().clone() for each in self.tensors()]
        torch.save({"inputs": tensors, "rng": plain_states()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True, map_location="cpu")
        recorded, mine = saved["inputs"], self.tensors()
        alike = [(each.shape, each.dtype) for each in mine] == [(each.shape, each.dtype) for each in recorded]
        same = alike and all(torch.equal(each.cpu(), other) for each, other in zip(mine, recorded, strict=True))
        if alike and not same:  # where the form is another, so is the sketch, and the call says nothing
            # What the model writes to a list or cache of the program's own is lost then.
            following = iter(recorded)
            self.replace([next(following).to(each.device) if self.is_tensor(each) else each for each in self._leaves])
        restore(saved["rng"])

    def disturb(self, share: float, seed: int) -> None:
        parameters = [each for each in self._model.parameters() if each.is_floating_point()]
        self._moved += [(each, each.detach().clone()) for each in parameters]
        disturb(parameters, share, seed)

    def put_back(self) -> None:
        with torch.no_grad():
            for parameter, before in self._moved:
                parameter.copy_(before)
        self._moved = []


class AnswersInDouble(AnswerSteps):
    """The chosen calls are made as the program makes them, and then once more in fp64, whose answer is the target.

    The second call finds what the first one found: copies of all that it is given (a cache that each call makes longer,
    say), and the model's own attributes as they were. The program goes on with what its own call left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._states: ByIdentity[State] = ByIdentity()

    def answer(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        state = self._states.get(module)
        if state is None or state.changed():
            state = self._states[module] = State([module])
        args_in_double, kwargs_in_double = wide_copies((args, kwargs), module)
        others = state.reach.tensors
        chance, before = States.now(), [(each, each.detach().clone()) for each in (*module.buffers(), *others)]
        result = call(*args, **kwargs)
        after, chance_after = [(each, each.detach().clone()) for each, _ in before], States.now()
        try:
            with state.as_it_was():
                chance.restore()
                _put(before)
                with computing_in_double(module, others):
                    self.note(module, call(*args_in_double, **kwargs_in_double))
        finally:
            _put(after)
            chance_after.restore()
        return result


class AnswersBySample(AnswerSteps):
    """As the program makes them, and kept as `worker.agreement` compares them: samples x places x classes."""

    def _array(self, tensor: torch.Tensor, share: float) -> Any:
        found = tensor.detach()
        if not found.is_floating_point():
            places = math.prod(found.shape[1:])  # by name: of none, PyTorch does not find out
            shaped = found.reshape(*(found.shape[:1] or (1,)), places, 1)
            return few_places(shaped, share).to("cpu", torch.int64).numpy()
        if found.dim() < 2:
            found = found.reshape(-1, 1, 1)
        elif found.dim() == 2:
            found = found[:, None]
        elif found.dim() > 3:  # pictures: N x C x H x W
            found = found.movedim(1, -1).flatten(1, -2)
        return few_places(found, share).to("cpu", torch.float32).numpy()


def _put(contents: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, held in contents:
            tensor.data.copy_(held)


def steps_for(role: str) -> AnswerSteps:
    if role in BY_SAMPLE:
        return AnswersBySample()
    return AnswersInDouble() if role == "reference" else AnswerSteps()
