"""A step that runs as it is written, and whose calls are noted from the model's on: what a graph of all would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.graphs import nodes_behind
from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks
from overdrive.seams.torch.internals import unseen_by_modes, version_of
from overdrive.techniques.compile.cuda_graphs.flat import flattened
from overdrive.techniques.compile.cuda_graphs.refusal import Refused
from overdrive.techniques.compile.cuda_graphs.sequence import (
    Around,
    Kind,
    Names,
    Noted,
    Place,
    StepSequence,
    TensorKind,
    around_now,
)

_NUMBERS = (bool, int, float, complex, str, type(None), slice, type(...), torch.Size)
_CONSTANTS = frozenset((*_NUMBERS, torch.dtype, torch.device, torch.memory_format, torch.layout))
_NO_FUNCTIONS = {("torch.autograd", "grad")}  # gradients that are asked for


class WatchedStep:
    """
    Attributes:
        refusal: why it cannot be one graph, if it was found.
    """

    def __init__(self, model: Any, kind: Any, own: Sequence[torch.Tensor]) -> None:
        """`model`, `kind`: the recorded model that is called, and how (see `models`); `own`: its tensors."""
        self.refusal = ""
        self._model, self._kind = model, kind
        self._own = {id(each) for each in own}
        self._names = Names(own)
        self._calls: list[Noted] = []
        self._trained: list[torch.Tensor] = []
        self._nodes: set[Any] = set()  # of autograd's, behind the loss
        self._sending: torch.Tensor | None = None
        self._sent = False
        self._zeroed: list[torch.Tensor] = []

    def call_model(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._noted(Kind.MODEL, self._model, call, args, kwargs)

    def call_function(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self.refusal:
            return function(*args, **kwargs)
        if function is torch.Tensor.backward:
            return self._send(function, args, kwargs)
        if (getattr(function, "__module__", ""), getattr(function, "__name__", "")) in _NO_FUNCTIONS:
            self.refusal = "the program asks for gradients by itself"
        return self._noted(Kind.FUNCTION, function, function, args, kwargs)

    def zero(self, holder: Any, call: Callable[..., Any], set_to_none: bool) -> None:
        if not set_to_none:
            self.refuse("gradients are set to zero, not to None")
        if not self._sent:
            of_optimizer = isinstance(holder, torch.optim.Optimizer)
            self._zeroed += parameters_of(holder) if of_optimizer else list(holder.parameters())
        with unseen_by_modes():
            self._noted(Kind.ZEROED, holder, call, (set_to_none,), {})

    def clip(self, parameters: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with unseen_by_modes():
            clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if any(id(each) not in self._own for each in clipped):
                self.refuse("gradients are clipped that are not the model's")
            return self._noted(Kind.CLIPPED, tuple(map(id, clipped)), call, args, kwargs)

    def sent(self, loss: Any) -> None:
        """What is truly sent backward, whoever had a hand in it."""
        if loss is not self._sending:
            self.refuse("the loss is sent backward by another way than its own `backward`, or scaled before it is")

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason

    def end(self, optimizer: Any) -> StepSequence | None:
        """`optimizer` is about to step. None: this is refused."""
        try:
            if not self.refusal:
                return self._sequence(optimizer)
        except Exception as error:
            self.refuse(str(error))
        return None

    def _noted(self, kind: Kind, what: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.refusal:
            return call(*args, **kwargs)
        try:
            noted, versions = self._arguments(kind, what, args, kwargs)
        except Exception as error:  # ours as well, from which nobody else keeps the program
            self.refuse(str(error))
            return call(*args, **kwargs)
        result = call(*args, **kwargs)
        try:
            if kind is not Kind.MODEL and any(version_of(each) != version for each, version in versions):
                raise Refused("the program writes to a tensor that it has not computed in this step")
            if kind not in (Kind.ZEROED, Kind.BACKWARD):
                noted.results, noted.results_form = self._names.results(result, kind is Kind.MODEL)
                if not any(type(each) is Place for each in (*noted.leaves, *noted.results)):
                    raise Refused(f"the program calls {getattr(what, '__name__', what)}, which computes no tensor")
            self._calls.append(noted)
        except Exception as error:
            self.refuse(str(error))
        return result

    def _arguments(self, kind: Kind, what: Any, args: Any, kwargs: Any) -> tuple[Noted, list[tuple[Any, int]]]:
        around: Around = around_now()
        leaves, form = flattened(args, kwargs)
        versions = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                leaves[number] = place = self._names.place(leaf)
                if place.of != "made":
                    versions.append((leaf, version_of(leaf)))
            elif type(leaf) not in _CONSTANTS:
                raise Refused(f"a function is given a {type(leaf).__name__}")
        return Noted(kind, what, leaves, form, around), versions

    def _send(self, function: Any, args: Any, kwargs: Any) -> Any:
        loss = args[0]
        if self._sent or any(args[1:]) or any(kwargs.values()):
            self.refuse("more than one loss is sent backward, or one with a gradient or a graph that is kept")
        try:
            self._look_behind(loss)
        except Exception as error:
            self.refuse(str(error))
        self._sending, self._sent = loss, True
        try:
            return self._noted(Kind.BACKWARD, function, function, args, kwargs)
        finally:
            self._sending = None

    def _look_behind(self, loss: Any) -> None:
        """What the loss sends gradients to."""
        self._nodes = set(nodes_behind([loss.grad_fn])) if loss.grad_fn is not None else set()
        leaves = {id(node.variable): node.variable for node in self._nodes if hasattr(node, "variable")}
        if not leaves or any(each not in self._own for each in leaves):
            raise Refused("a trained tensor is no parameter of the model")
        self._trained = list(leaves.values())
        if any(each.grad is not None for each in self._trained):
            raise Refused("gradients of several backward passes are added up")
        if any(gradient_hooks(each) or accumulation_hooks(each) for each in self._trained):
            raise Refused("the program has hooks on gradients")

    def _sequence(self, optimizer: Any) -> StepSequence:
        if not self._sent:
            raise Refused("the optimizer steps without a loss that was sent backward since the model was called")
        stepping = parameters_of(optimizer)
        if any(all(each is not one for one in stepping) for each in self._trained):
            raise Refused("the step trains some of the model's parameters, and another optimizer's the rest")
        trained = [each for each in stepping if each.grad is not None]
        if {id(each) for each in trained} != {id(each) for each in self._trained}:
            raise Refused("the optimizer steps by gradients of earlier steps")
        for each in self._names.made:
            if each.requires_grad and each.grad_fn not in self._nodes:
                raise Refused("something is computed with a gradient that the loss does not come from")
        made = self._names.kinds_made([each.grad for each in trained if each.grad is not None])
        given = [TensorKind.of(each) for each in self._names.given]
        return StepSequence(
            self._model, self._kind, self._calls, made, given, optimizer, self._zeroed, stepping, trained
        )
