"""How the calls of a program that trains nothing are recorded, given again and answered in fp64.

The reference run records what its model is given in each chosen call, and computes the answer in fp64. A candidate
gives its model the recorded inputs in that call, with the same random numbers, and its answer is compared. So calls
that depend on each other (a token on those before it) do not part for an answer that was all but a tie.

What is the same in all frameworks is here; what tensors are is each one's own (`worker.torch.answer_replay`,
`worker.keras.answer_replay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.step_counter import StepCounter
from overdrive.worker.replay import CALL, Arrays, Replay

_MOST_TENSORS = 16  # of an answer of which as much is kept as of a single one; of more, less of each
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

    # -- the framework's own ----------------------------------------------------------------------

    def listen(self, seams: Seams) -> None:
        """Have `called` called around each outermost call, outside of all techniques: one of them may answer without
        calling the model at all."""
        raise NotImplementedError

    def flat(self, thing: Any) -> list[Any]:
        raise NotImplementedError

    def unflat(self, like: Any, leaves: list[Any]) -> Any:
        raise NotImplementedError

    def is_tensor(self, thing: Any) -> bool:
        raise NotImplementedError

    def bytes_of(self, tensor: Any) -> int:
        raise NotImplementedError

    def sketch(self, tensor: Any) -> list[float]:
        raise NotImplementedError

    def kept(self, tensor: Any, share: float) -> Any:
        """A tensor of an answer, as an array to be compared; `share`: of the elements that may be kept of a tensor."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        raise NotImplementedError

    def load(self, path: Path) -> None:
        raise NotImplementedError

    def disturb(self, share: float, seed: int) -> None:
        """For the length of the call."""
        raise NotImplementedError

    def put_back(self) -> None:
        """What was disturbed."""
        raise NotImplementedError

    def answer(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a chosen call, and note its answer."""
        result = call(*args, **kwargs)
        self.note(module, result)
        return result

    # -- as `worker.replay` has it ----------------------------------------------------------------

    def watch(self, seams: Seams, replay: Replay) -> None:
        self._replay = replay
        seams.step_begins.subscribe(self._begins)
        seams.step_ends.subscribe(self._counter.tick)
        self.listen(seams)

    def _begins(self, stands_in: Any) -> None:
        self._stands_in = stands_in

    def settle(self) -> None:
        """All that a call depends on is in hand."""

    def size(self) -> int:
        return self._given() + self._most_of_others

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

    # -- calls ------------------------------------------------------------------------------------

    def tensors(self) -> list[Any]:
        """What the call under way is given."""
        return [each for each in self._leaves if self.is_tensor(each)]

    def replace(self, leaves: list[Any]) -> None:
        """The call is to be given these instead."""
        self._leaves, self._is_replaced = leaves, True

    def _given(self) -> int:
        return sum(map(self.bytes_of, self.tensors()))

    def called(self, module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._replay is not None
        stands_in, self._stands_in = self._stands_in, None  # none: of a loss, or within a fetch
        if stands_in is None:
            return call(*args, **kwargs)
        self._model = module
        self._leaves = self.flat((args, kwargs))
        try:
            if self._counter.leads(stands_in):
                self._call, self._bytes_of_others = 1, 0
                self._replay.stands(self._counter.steps)
            else:
                self._another_call()
            if not self._replay.now:
                return call(*args, **kwargs)
            # Of all: the first may be the same in each call, as the words are to which pictures are compared.
            self._inputs += [number for each in self.tensors() for number in self.sketch(each)]
            if self._is_replaced:
                args, kwargs = self.unflat((args, kwargs), self._leaves)
            return self.answer(module, call, args, kwargs)
        finally:
            self.put_back()
            self._model, self._leaves, self._is_replaced = None, [], False

    def _another_call(self) -> None:
        """Of another model than the leading one."""
        assert self._replay is not None
        self._call += 1
        self._bytes_of_others += self._given()
        self._most_of_others = max(self._most_of_others, self._bytes_of_others)
        if self._replay.now:
            self._replay.goes_on(self._call)

    def note(self, module: Any, result: Any) -> None:
        tensors = [each for each in self.flat(result) if self.is_tensor(each)]
        share = min(1.0, _MOST_TENSORS / max(1, len(tensors)))  # a GPT answers with its cache: two tensors a layer
        leads = self._call == 1
        whose, which = (
            ("the model", "") if leads else (f"another model, {type(module).__name__}", f"{CALL}{self._call}")
        )
        for number, each in enumerate(tensors, start=1):
            name = whose if len(tensors) == 1 else f"{whose} (tensor {number})"
            self._noted[f"output {name}{which}"] = self.kept(each, share)


def few_places(answer: Any, share: float) -> Any:
    """Of an array or tensor, samples x places x classes: with fewer of the places of each sample, evenly spaced, and at
    last with fewer samples, where they are many."""
    most = int(share * _MOST_OF_AN_ANSWER) or 1
    for axis in (1, 0):
        every = -(-math.prod(answer.shape) // most)
        if every > 1:
            answer = answer[(slice(None),) * axis + (slice(None, None, min(every, answer.shape[axis])),)]
    return answer
