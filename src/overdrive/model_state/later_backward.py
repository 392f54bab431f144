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
    detaches them, or runs under `no_grad` itself.

    Attributes:
        asked: somebody has asked for gradients of such a call.
    """

    def __init__(self) -> None:
        self.asked = False
        self._known: dict[Hashable, list[bool]] = {}

    def note(self, parts: Parts, result: Any, kind: Hashable = None) -> None:
        """`kind`: of the call, where there are several."""
        if torch.is_grad_enabled() and len(self._known) < _MOST_KINDS:
            self._known[parts.frozen, kind] = [each.requires_grad for each in _tensors(tree_leaves(result))]

    def of(self, parts: Parts, kind: Hashable = None) -> list[bool] | None:
        """None where that is not known; where no gradients are recorded none do."""
        return self._known.get((parts.frozen, kind)) if torch.is_grad_enabled() else []


def wants_gradients(given: Sequence[Any], seen: Requiring | None = None) -> bool:
    """Whether the program will ask for a gradient with respect to one of these: it says so of a tensor of its own, or
    it has asked before. A state that it got from the call before, and gives to the next, requires one, too, where
    `no_grad` was forgotten."""
    if not torch.is_grad_enabled():
        return False
    requiring = [each for each in _tensors(given) if each.requires_grad]
    return any(each.is_leaf for each in requiring) or (bool(requiring) and seen is not None and seen.asked)


def _tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def without_graph(
    parts: Parts,
    call: Callable[[], Any],
    own: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    requiring: Sequence[bool],
    seen: Requiring,
) -> Any:
    """What `call` returns, computed without a graph; the results require gradients as those of `own` would.

    Args:
        parts: the model's.
        call: the model's call, by whatever computes it.
        own: the call as the program makes it, with these arguments: carried out in a backward pass, if there is one.
        requiring: of each tensor among the results, whether the model's own requires a gradient.
        seen: is told if somebody asks for gradients.
    """
    if not torch.is_grad_enabled():
        return call()
    if not any(requiring):
        with torch.no_grad():
            return call()
    parameters = [each for each in parts.parameters if each.requires_grad]
    given = {id(each): each for each in _tensors(tree_leaves((args, kwargs))) if each.requires_grad}
    made = _Made(parts.modules, call, _Again(own, args, kwargs), parameters, requiring, seen)
    results = _Later.apply(made, *parameters, *given.values())  # type: ignore[no-untyped-call]
    following = iter(results)
    leaves = [next(following) if isinstance(each, torch.Tensor) else each for each in made.leaves]
    return tree_unflatten(leaves, made.spec)


class _Again:
    """A call that may be made again. What it keeps of inputs that require gradients is without their graph, which
    autograd holds itself, and gives up once somebody has gone back through it."""

    def __init__(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._own = own
        leaves, self._spec = tree_flatten((args, kwargs))
        detached = {id(each): each.detach() for each in _tensors(leaves) if each.requires_grad}
        self._leaves = [detached.get(id(each), each) for each in leaves]
        self.inputs = list(detached.values())  # that require gradients, each once

    @property
    def tensors(self) -> list[torch.Tensor]:
        return _tensors(self._leaves)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Any:
        """`inputs`: in the place of those that require gradients."""
        others = {id(each): other for each, other in zip(self.inputs, inputs, strict=True)}
        args, kwargs = tree_unflatten([others.get(id(each), each) for each in self._leaves], self._spec)
        return self._own(*args, **kwargs)


class _Made:
    """One call, and what it takes to make it again."""

    def __init__(
        self,
        modules: list[torch.nn.Module],
        call: Callable[[], Any],
        again: _Again,
        parameters: list[Any],
        requiring: Sequence[bool],
        seen: Requiring,
    ) -> None:
        self.again, self.parameters, self.requiring = again, parameters, requiring
        self.leaves: list[Any] = []
        self.spec: Any = None
        self._call: Callable[[], Any] | None = call
        self._seen = seen
        self._generators = States.now()
        model = modules[0]
        self._buffers = [(each, each.detach().clone()) for each in model.buffers()] if model.training else []
        # What it reads once more must hold what it held: its inputs, too, which a program may fill anew for each call.
        self._read = [*parameters, *again.tensors]
        self._versions = [writes_to(each) for each in self._read]
        self._modes = [(each, each.training) for each in modules]

    def results(self) -> list[torch.Tensor]:
        assert self._call is not None
        self.leaves, self.spec = tree_flatten(self._call())
        self._call = None  # it holds its inputs, with their graph
        tensors = _tensors(self.leaves)
        if len(tensors) != len(self.requiring):  # a detection for each object, say
            self.requiring = [each.is_floating_point() or each.is_complex() for each in tensors]
        # Detached: a result may be an input itself, which is not to have a gradient of ours.
        return [each.detach() for each in tensors]

    def gradients(
        self, arriving: Sequence[torch.Tensor | None], inputs: Sequence[torch.Tensor], create: bool
    ) -> list[torch.Tensor | None]:
        """Of the parameters, and of the inputs that require some.

        Args:
            inputs: these, with their graph, where `create`: one of the gradients themselves is to be made.
        """
        self._seen.asked = True
        if [writes_to(each) for each in self._read] != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        open_later: list[bool] = []
        if create:
            given = [_Given.apply(open_later, each) for each in inputs]  # type: ignore[no-untyped-call]
        else:
            given = [each.detach().requires_grad_() for each in self.again.inputs]
        now, buffers = States.now(), [(each, each.detach().clone()) for each, _ in self._buffers]
        modes = [(each, each.training) for each, _ in self._modes]
        self._generators.restore()
        _put(self._buffers)
        _set_modes(self._modes)
        try:
            with torch.enable_grad():
                leaves = tree_flatten(self.again(given))[0]
        finally:
            _set_modes(modes)
            _put(buffers)
            now.restore()
        pairs = zip(_tensors(leaves), arriving, strict=True)
        due = [(each, gradient) for each, gradient in pairs if each.requires_grad and gradient is not None]
        of = [*self.parameters, *given]
        if not due:
            return [None] * len(of)
        wanted, gradients = zip(*due, strict=True)
        with without_gradient_hooks(self.parameters):  # they are called with what is handed on from here
            found = torch.autograd.grad(wanted, of, gradients, create_graph=create, allow_unused=True)
        open_later.append(True)
        return list(found)


def _put(contents: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, held in contents:
        tensor.data.copy_(held)


def _set_modes(modes: list[tuple[torch.nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


class _Later(torch.autograd.Function):
    """One node of autograd in the place of all those of the model."""

    @staticmethod
    def forward(ctx: Any, made: _Made, *tensors: torch.Tensor) -> Any:
        """`tensors`: the parameters, and then the inputs that require gradients."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[len(made.parameters) :])
        results = made.results()
        ctx.made = made
        ctx.mark_non_differentiable(*(each for each, due in zip(results, made.requiring, strict=True) if not due))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor | None) -> Any:
        made, create = ctx.made, torch.is_grad_enabled()
        if all(each is None for each in arriving):  # as from `_Given`
            return (None,) * (1 + len(made.parameters) + len(made.again.inputs))
        return (None, *made.gradients(arriving, ctx.saved_tensors if create else (), create))


class _Given(torch.autograd.Function):
    """An input in a call that is made again. While the gradients of that call are computed none goes on to what the
    input itself came of, since that is the input's own; what is derived from them later does."""

    @staticmethod
    def forward(ctx: Any, open_later: list[bool], tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.open_later = open_later
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return None, gradient if ctx.open_later else None
