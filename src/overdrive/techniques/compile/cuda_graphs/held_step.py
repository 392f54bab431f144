"""A step whose calls are matched with a sequence and held: what the script is given stands for what comes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from overdrive.seams.torch.internals import become, delayed_error, storage_id
from overdrive.techniques.compile.cuda_graphs.flat import flattened, parts_of, result_of
from overdrive.techniques.compile.cuda_graphs.sequence import (
    Kind,
    Noted,
    Place,
    StepSequence,
    TensorKind,
    around_now,
    as_it_was,
)

NOTHING = object()
_COMPUTE = (Kind.FUNCTION, Kind.MODEL, Kind.CLIPPED)  # kinds on which gradients and autocast around them have a say
# As PyTorch says it: a step's graph is gone once it was sent backward.
_SPENT = "Trying to backward through the graph a second time: the step that computed this is over"


class Placeholders:
    """Makes tensors that stand for the results of a step.

    They have memory of their own kind in common, which holds NaN: C code that reads them past PyTorch finds no number.
    """

    def __init__(self, kinds: list[TensorKind]) -> None:
        self._make: list[Callable[[], torch.Tensor]] = [_maker(each) for each in kinds]
        self.memory: set[int] = set()
        for make in self._make:
            self.memory.add(storage_id(make()))

    def make(self, number: int) -> torch.Tensor:
        return self._make[number]()


def _maker(kind: TensorKind) -> Callable[[], torch.Tensor]:
    empty = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device)
    if kind.dtype.is_floating_point or kind.dtype.is_complex:
        empty.fill_(float("nan"))
    elif kind.dtype is not torch.bool:
        empty.fill_(torch.iinfo(kind.dtype).max)
    if not kind.differentiable:
        return empty.detach
    empty.requires_grad_()
    return partial(delayed_error(_SPENT), empty)


class HeldStep:
    def __init__(self, sequence: StepSequence, own: list[torch.Tensor], memory: set[int], make: Placeholders) -> None:
        """`own`: the model's tensors; `memory`: theirs and that of placeholders, which is given to no step."""
        self.given: list[torch.Tensor] = []
        self.made: list[torch.Tensor] = []
        self.loss: torch.Tensor | None = None
        self.random_state: Any = None
        self.stream: Any = None
        self._sequence, self._own, self._memory, self._placeholders = sequence, own, memory, make
        self._calls: list[tuple[Noted, Callable[..., Any], Any, Any]] = []

    @property
    def complete(self) -> bool:
        return len(self._calls) == len(self._sequence.calls)

    def answer(self, kind: Kind, what: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the script gets of this call; NOTHING where another one was to come. `call` makes it for real."""
        calls, at = self._sequence.calls, len(self._calls)
        if at == len(calls):
            return NOTHING
        wanted = calls[at]
        if wanted.kind is not kind or (wanted.what is not what and wanted.what != what):
            return NOTHING
        leaves, form = flattened(args, kwargs)
        if form != wanted.form or not self._fit(wanted.leaves, leaves):
            return NOTHING
        if kind in _COMPUTE and around_now() != wanted.around:
            return NOTHING
        self._calls.append((wanted, call, args, kwargs))
        if kind is Kind.BACKWARD:
            self.loss = leaves[0]
        return self._results(wanted)

    def _fit(self, wanted: list[Any], leaves: list[Any]) -> bool:
        for want, leaf in zip(wanted, leaves, strict=True):
            if type(want) is Place:
                of, number = want
                if of == "made":
                    same = leaf is self.made[number]
                elif of == "own":
                    same = leaf is self._own[number]
                elif number < len(self.given):
                    same = leaf is self.given[number]
                else:
                    same = self._sequence.given[number].fits(leaf) and storage_id(leaf) not in self._memory
                    self.given.append(leaf)
                if not same:
                    return False
            elif leaf is not want and (type(leaf) is not type(want) or leaf != want):
                return False
        return True

    def _results(self, wanted: Noted) -> Any:
        parts = [self._tensor(each) if type(each) is Place else each for each in wanted.results]
        if not parts:
            return None
        return result_of(parts, wanted.results_form)

    def _tensor(self, place: Place) -> torch.Tensor:
        of, number = place
        if of == "own":
            return self._own[number]
        if of == "given":
            return self.given[number]
        if number == len(self.made):
            self.made.append(self._placeholders.make(number))
        return self.made[number]

    def carry_out(self) -> None:
        """Make all calls so far, for real; what stood for their results is these from now on."""
        there = 0
        for noted, call, args, kwargs in self._calls:
            with as_it_was(noted.around):
                result = call(*args, **kwargs)
                if not noted.results:
                    continue
                for place, part in zip(noted.results, parts_of(result)[0], strict=True):
                    if type(place) is Place and place == ("made", there):
                        become(self.made[there], part)
                        there += 1

    def is_kept(self, number: int) -> bool:
        """Whether the program still has what stands for this result."""
        mine = self.made[number]
        ours = sum(each is mine for _, _, args, kwargs in self._calls for each in (*args, *kwargs.values()))
        return sys.getrefcount(mine) > 3 + ours + (self.loss is mine)  # the list's, this one, and that of the call

    def give(self, values: Sequence[torch.Tensor]) -> None:
        """What stands for results has these values from now on, where the program still has it: copies."""
        self._calls.clear()
        for number, value in enumerate(values):
            if sys.getrefcount(self.made[number]) > 2:  # the list's, and that of the call
                self.made[number].data = value.clone()
