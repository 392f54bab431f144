"""A call's results without the graph of their gradients, which is made when somebody asks for a gradient after all."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from overdrive.core.rng import States
from overdrive.seams.torch.hooks import without_gradient_hooks
from overdrive.seams.torch.internals import writes_to

_MOST_KINDS = 1024  # of calls, that are kept apart


class Parts:
    """A model's parameters and modules. To find either takes 0.2 ms for a hundred layers: who knows that a model is
    what it was keeps them. It keeps no model alive."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = list(model.parameters())
        self._modules = [weakref.ref(each) for each in model.modules()]

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The model, and those within it."""
        return [each for found in self._modules if (each := found()) is not None]

    @property
    def frozen(self) -> Hashable:
        """Which parameters require no gradient now: the program may freeze them between two calls."""
        return tuple([not each.requires_grad for each in self.parameters])


class Requiring:
    """Which results of a model's calls require gradients, as its own calls have shown: not all do where its forward
    detaches them, or runs under `no_grad` itself."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[bool]] = {}

    def note(self, parts: Parts, result: Any, kind: Hashable = None) -> None:
        """`kind`: of the call, where there are several."""
        if torch.is_grad_enabled() and len(self._known) < _MOST_KINDS:
            self._known[parts.frozen, kind] = [each.requires_grad for each in _tensors(tree_leaves(result))]

    def of(self, parts: Parts, kind: Hashable = None) -> list[bool] | None:
        """None where that is not known; where no gradients are recorded none do."""
        return self._known.get((parts.frozen, kind)) if torch.is_grad_enabled() else []


def _tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def without_graph(
    parts: Parts, call: Callable[[], Any], again: Callable[[], Any], requiring: Sequence[bool], given: Sequence[Any]
) -> Any:
    """What `call` returns, computed without a graph; the results require gradients as those of `again` would.

    Of inputs none may require a gradient.

    Args:
        parts: the model's.
        call: the model's call, by whatever computes it.
        again: the call as the program makes it: carried out in a backward pass, if there is one.
        requiring: of each tensor among the results, whether the model's own requires a gradient.
        given: the tensors that the call is given.
    """
    if not torch.is_grad_enabled():
        return call()
    parameters = [each for each in parts.parameters if each.requires_grad]
    if not parameters or not any(requiring):
        with torch.no_grad():
            return call()
    made = _Made(parts.modules, call, again, parameters, requiring, given)
    results = _Later.apply(made, *parameters)  # type: ignore[no-untyped-call]
    following = iter(results)
    leaves = [next(following) if isinstance(each, torch.Tensor) else each for each in made.leaves]
    return tree_unflatten(leaves, made.spec)


class _Made:
    """One call, and what it takes to make it again."""

    def __init__(
        self,
        modules: list[torch.nn.Module],
        call: Callable[[], Any],
        again: Callable[[], Any],
        parameters: list[Any],
        requiring: Sequence[bool],
        given: Sequence[Any],
    ) -> None:
        self.call, self.again, self.parameters, self.requiring = call, again, parameters, requiring
        self.leaves: list[Any] = []
        self.spec: Any = None
        self._generators = States.now()
        model = modules[0]
        self._buffers = [(each, each.detach().clone()) for each in model.buffers()] if model.training else []
        # What it reads once more must hold what it held: its inputs, too, which a program may fill anew for each call.
        self._read = [*parameters, *given]
        self._versions = [writes_to(each) for each in self._read]
        self._modes = [(each, each.training) for each in modules]

    def results(self) -> list[torch.Tensor]:
        self.leaves, self.spec = tree_flatten(self.call())
        tensors = _tensors(self.leaves)
        if len(tensors) != len(self.requiring):  # a detection for each object, say
            self.requiring = [each.is_floating_point() or each.is_complex() for each in tensors]
        # Detached: a result may be an input itself, which is not to have a gradient of ours.
        return [each.detach() for each in tensors]

    def gradients(self, given: Sequence[torch.Tensor], create: bool) -> list[torch.Tensor | None]:
        if [writes_to(each) for each in self._read] != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        now, buffers = States.now(), [(each, each.detach().clone()) for each, _ in self._buffers]
        modes = [(each, each.training) for each, _ in self._modes]
        self._generators.restore()
        _put(self._buffers)
        _set_modes(self._modes)
        try:
            with torch.enable_grad():
                leaves = tree_flatten(self.again())[0]
        finally:
            _set_modes(modes)
            _put(buffers)
            now.restore()
        due = [(each, gradient) for each, gradient in zip(_tensors(leaves), given, strict=True) if each.requires_grad]
        if not due:
            return [None] * len(self.parameters)
        wanted, arriving = zip(*due, strict=True)
        with without_gradient_hooks(self.parameters):  # they are called with what is handed on from here
            return list(torch.autograd.grad(wanted, self.parameters, arriving, create_graph=create, allow_unused=True))


def _put(contents: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, held in contents:
        tensor.data.copy_(held)


def _set_modes(modes: list[tuple[torch.nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


class _Later(torch.autograd.Function):
    """One node of autograd in the place of all those of the model."""

    @staticmethod
    def forward(ctx: Any, made: _Made, *parameters: torch.Tensor) -> Any:
        results = made.results()
        ctx.made = made
        ctx.mark_non_differentiable(*(each for each, due in zip(results, made.requiring, strict=True) if not due))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        return (None, *ctx.made.gradients(given, torch.is_grad_enabled()))
