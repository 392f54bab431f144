"""A call's results without the graph of their gradients, which is made when somebody asks for a gradient after all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.core.rng import States
from overdrive.seams.torch.internals import version_of


def without_graph(model: torch.nn.Module, call: Callable[[], Any], again: Callable[[], Any]) -> Any:
    """What `call` returns, computed without a graph; the results require gradients as those of `again` would.

    Of inputs none may require a gradient.

    Args:
        call: the model's call, by whatever computes it.
        again: the call as the program makes it: carried out in a backward pass, if there is one.
    """
    if not torch.is_grad_enabled():
        return call()
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        with torch.no_grad():
            return call()
    made = _Made(model, call, again, parameters)
    results = _Later.apply(made, *parameters)  # type: ignore[no-untyped-call]
    following = iter(results)
    leaves = [next(following) if isinstance(each, torch.Tensor) else each for each in made.leaves]
    return tree_unflatten(leaves, made.spec)


class _Made:
    """One call, and what it takes to make it again."""

    def __init__(
        self, model: torch.nn.Module, call: Callable[[], Any], again: Callable[[], Any], parameters: list[Any]
    ) -> None:
        self.call, self.again, self.parameters = call, again, parameters
        self.leaves: list[Any] = []
        self.spec: Any = None
        self._generators = States.now()
        self._buffers = [(each, each.detach().clone()) for each in model.buffers()] if model.training else []
        self._versions = [version_of(each) for each in parameters]
        self._modes = [(each, each.training) for each in model.modules()]

    def results(self) -> list[torch.Tensor]:
        self.leaves, self.spec = tree_flatten(self.call())
        # Detached: a result may be an input itself, which is not to have a gradient of ours.
        return [each.detach() for each in self.leaves if isinstance(each, torch.Tensor)]

    def gradients(self, given: Sequence[torch.Tensor], create: bool) -> list[torch.Tensor | None]:
        if [version_of(each) for each in self.parameters] != self._versions:
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
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        due = [(each, gradient) for each, gradient in zip(tensors, given, strict=True) if each.requires_grad]
        wanted, arriving = zip(*due, strict=True)
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
        ctx.mark_non_differentiable(*(each for each in results if not (each.is_floating_point() or each.is_complex())))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        return (None, *ctx.made.gradients(given, torch.is_grad_enabled()))
