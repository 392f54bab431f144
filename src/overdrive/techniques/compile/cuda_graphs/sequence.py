"""What a script does between its model's call and its optimizer's step, noted call by call, and compared with later.

A tensor stands there for what it is: one that the step computes, one that it is given anew each time (a batch), or
memory of the model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import torch

from overdrive.model_state.state import identical
from overdrive.seams.torch.internals import storage_id
from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
from overdrive.techniques.compile.cuda_graphs.flat import parts_of
from overdrive.techniques.compile.cuda_graphs.refusal import Refused

Around: TypeAlias = tuple[bool, bool, torch.dtype]  # with gradients, under autocast, in which type


class Kind(Enum):
    MODEL = "the model's call"
    FUNCTION = "a function"
    ZEROED = "zero_grad"
    CLIPPED = "clip_grad_norm_"
    BACKWARD = "backward"


class Place(NamedTuple):
    """A tensor of a step: `of` its results ("made"), of what it is given ("given"), or of the model's ("own")."""

    of: str
    number: int


@dataclass(frozen=True)
class TensorKind:
    """All that is asked of a tensor which is given, and all that is told of one which is not yet computed."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    differentiable: bool
    apart: bool = True  # of a result: it shares its memory with no other tensor that the program may have

    @staticmethod
    def of(tensor: torch.Tensor, apart: bool = True) -> TensorKind:
        return TensorKind(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, apart)

    def fits(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.shape == self.shape
            and tensor.stride() == self.strides
            and tensor.dtype == self.dtype
            and tensor.requires_grad == self.differentiable
            and tensor.device == self.device
        )


@dataclass
class Noted:
    """One call. `what`: the function, the model, or whose gradients are zeroed; `results` None: it is given nothing."""

    kind: Kind
    what: Any
    leaves: list[Any]
    form: Any
    around: Around
    results: list[Any] = field(default_factory=list)
    results_form: Any = None

    def same(self, other: Noted) -> bool:
        return (
            self.kind is other.kind
            and self.what == other.what
            and (self.form, self.around, self.results_form) == (other.form, other.around, other.results_form)
            and alike(self.leaves, other.leaves)
            and alike(self.results, other.results)
        )


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        one is other or (type(one) is type(other) and one == other) for one, other in zip(some, others, strict=True)
    )


@dataclass
class StepSequence:
    """The calls of one step, and the tensors that stand in it."""

    model: Any
    kind: Any  # of the model's call (see `models`)
    calls: list[Noted]
    made: list[TensorKind]
    given: list[TensorKind]
    optimizer: Any = None
    zeroed: list[torch.Tensor] = field(default_factory=list)  # the parameters whose gradients are given up in it
    stepping: list[torch.Tensor] = field(default_factory=list)  # those of the optimizer
    trained: list[torch.Tensor] = field(default_factory=list)  # those of them that have a gradient

    def same(self, other: StepSequence) -> bool:
        return (
            self.model is other.model
            and self.kind == other.kind
            and self.optimizer is other.optimizer
            and (self.made, self.given) == (other.made, other.given)
            and len(self.calls) == len(other.calls)
            and all(one.same(another) for one, another in zip(self.calls, other.calls, strict=True))
            and all(map(identical, self._lists(), other._lists()))
        )

    def _lists(self) -> tuple[list[torch.Tensor], ...]:
        return self.zeroed, self.stepping, self.trained

    @property
    def needs_none(self) -> list[torch.Tensor]:
        """The parameters that may have no gradient when it begins, or it is another one."""
        zeroed = {id(each) for each in self.zeroed}
        return [each for each in self.stepping if id(each) not in zeroed]


def around_now() -> Around:
    kind = captured.DEVICE
    return torch.is_grad_enabled(), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


@contextmanager
def as_it_was(around: Around, cached: bool = True) -> Iterator[None]:
    """Gradients and autocast as they were around a call. `cached`: autocast may keep what it has cast."""
    gradients, autocast, dtype = around
    with ExitStack() as stack:
        if torch.is_grad_enabled() != gradients:
            stack.enter_context(torch.set_grad_enabled(gradients))
        if autocast or torch.is_autocast_enabled(captured.DEVICE):
            stack.enter_context(torch.autocast(captured.DEVICE, dtype, enabled=autocast, cache_enabled=cached))
        yield


class Names:
    """Which tensor of the step under way is which."""

    def __init__(self, own: Sequence[torch.Tensor]) -> None:
        self._places = {id(each): Place("own", number) for number, each in enumerate(own)}
        self._own_memory = {storage_id(each) for each in own}
        self.given: list[torch.Tensor] = []
        self.made: list[torch.Tensor] = []
        self._nodes: list[Any] = []  # of autograd, that these have by the calls that were noted

    def place(self, tensor: torch.Tensor) -> Place:
        """
        Raises:
            Refused: it is none that a replay can be given.
        """
        found = self._places.get(id(tensor))
        if found is not None:
            return found
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            raise Refused(f"a {type(tensor).__name__} comes into it")
        if tensor.device.type != captured.DEVICE:
            raise Refused(f"a tensor on the device {tensor.device.type} comes into it")
        if tensor.requires_grad:
            raise Refused("a tensor with a gradient comes into it that it has not computed")
        if storage_id(tensor) in self._own_memory:
            raise Refused("a part of the model's memory comes into it")
        self._places[id(tensor)] = found = Place("given", len(self.given))
        self.given.append(tensor)
        return found

    def results(self, result: Any, constants: bool) -> tuple[list[Any], Any]:
        """Name what a call has given. `constants`: it may be other than tensors.

        Raises:
            Refused: it is a number, say, which the program may decide by.
        """
        parts, form = parts_of(result)
        for number, each in enumerate(parts):
            if isinstance(each, torch.Tensor):
                parts[number] = place = self._places.get(id(each)) or self._name(each)
                if place.of == "made":
                    self._nodes[place.number] = each.grad_fn
            elif each is not None and not (constants and type(each) in (bool, int, float, str)):
                raise Refused(f"the program is told a {type(each).__name__} in the midst of it")
        return parts, form

    def _name(self, tensor: torch.Tensor) -> Place:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            raise Refused(f"a {type(tensor).__name__} is computed in it")
        if tensor.device.type != captured.DEVICE:
            raise Refused(f"a tensor on the device {tensor.device.type} is computed in it")
        self._places[id(tensor)] = found = Place("made", len(self.made))
        self.made.append(tensor)
        self._nodes.append(None)
        return found

    def kinds_made(self, others: Sequence[torch.Tensor]) -> list[TensorKind]:
        """`others`: further tensors that the program can reach.

        Raises:
            Refused: they were not all computed by the calls that were noted.
        """
        if any(each.grad_fn is not node for each, node in zip(self.made, self._nodes, strict=True)):
            raise Refused("something is computed by a function of autograd that PyTorch tells nobody of")
        memory = [storage_id(each) for each in self.made]
        known = self._own_memory | {storage_id(each) for each in (*self.given, *others)}
        return [
            TensorKind.of(each, place not in known and memory.count(place) == 1)
            for each, place in zip(self.made, memory, strict=True)
        ]
