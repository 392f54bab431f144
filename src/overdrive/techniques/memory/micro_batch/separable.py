"""Whether a model makes of a batch what it makes of its parts: tried on the first two parts, in training mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from overdrive.core.rng import States
from overdrive.model_state.division.likeness import near
from overdrive.model_state.state import State
from overdrive.model_state.trial_call import NoTrial, tried
from overdrive.seams.torch.graphs import nodes_behind
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.internals import is_batch_norm, schema_of
from overdrive.seams.torch.moment import Circumstances, chance_as
from overdrive.techniques.memory.micro_batch.parts import Call, Way, bounds, part_of

# Of the largest value: TF32 differs by 1e-3 between one size of a product and another; a batch mean by far more.
_TOLERANCE = 1e-2
_DROPOUTS = ("dropout_p", "dropout")


class Inseparable(Exception):
    """The model's call cannot be split; the message is the reason, for people."""


def find_way(
    model: torch.nn.Module,
    call: Call,
    leaves: Sequence[Any],
    spec: TreeSpec,
    size: int,
    parts: int,
    hooked: Callable[[], bool],
) -> tuple[Way, State]:
    """How to split this call, and what the model was then. Leaves no trace.

    Args:
        hooked: whether a hook has been put on a gradient, in this call.

    Raises:
        Inseparable: it cannot be.
    """
    for name, module in model.named_modules():
        if is_batch_norm(module) and module.training:
            raise Inseparable(f"{name or type(model).__name__} is batch normalisation, which counts on the whole batch")
    if type(model).__module__.startswith(("torch.distributed", "torch.nn.parallel")):
        raise Inseparable(f"{type(model).__name__} spreads the batch itself")
    if own_hooks(model):
        raise Inseparable("the program has hooks on its model, which would see parts of a batch")

    state = State([model])
    if what := state.reach.hidden or state.reach.outward:
        raise Inseparable(f"the model's code can reach {what}")
    split = tuple(isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == size for leaf in leaves)
    try:
        outcome = tried(model, partial(_try_parts, model, call, leaves, spec, split, bounds(size, parts), hooked))
    except NoTrial as error:
        raise Inseparable(f"the model could not be called on a part of its batch ({error})") from None
    if outcome.effect or outcome.buffers:
        effect = outcome.effect or f"it writes to {outcome.buffers[0]}"
        raise Inseparable(f"the model does more than compute: {effect}")
    if "inseparable" in outcome.made:
        raise Inseparable(outcome.made["inseparable"])
    return Way(split, tuple(outcome.made["dims"]), tuple(outcome.made["differentiable"])), state


def _try_parts(
    model: torch.nn.Module,
    call: Call,
    leaves: Sequence[Any],
    spec: TreeSpec,
    split: Sequence[bool],
    places: Sequence[tuple[int, int]],
    hooked: Callable[[], bool],
) -> dict[str, Any]:
    """How the results of two parts make up that of both, as plain data."""
    (first, middle), (_, end) = places[:2]
    circumstances = Circumstances()

    def make(start: int, stop: int) -> list[Any]:
        args, kwargs = tree_unflatten(part_of(leaves, split, start, stop), spec)
        with circumstances.again(), chance_as(States.now()):
            results: list[Any] = tree_flatten(call(*args, **kwargs))[0]
        return results

    try:
        differentiable = _differentiable(model, leaves, make(first, middle))
        if hooked():
            raise Inseparable("the model's call puts hooks on gradients, which would see those of parts of a batch")
        made = []
        for start, stop in ((first, middle), (middle, end), (first, end)):
            with torch.no_grad(), _WithoutChance():  # type: ignore[no-untyped-call]
                made.append(make(start, stop))
        if len({len(each) for each in made}) > 1:
            raise Inseparable("the model's result for a part of the batch has another structure")
        dims = [_joined_along(*each) for each in zip(*made, strict=True)]
    except Inseparable as reason:
        return {"inseparable": str(reason)}
    return {"dims": dims, "differentiable": differentiable}


def _differentiable(model: torch.nn.Module, leaves: Sequence[Any], results: Sequence[Any]) -> list[bool]:
    """Which of the results have a gradient."""
    strangers = _leaves_behind(results) - {id(leaf) for leaf in leaves} - {id(each) for each in model.parameters()}
    if strangers:
        raise Inseparable("the model's result depends on trained tensors that are no parameters of it")
    differentiable = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in results]
    if not any(differentiable):
        raise Inseparable("the model's result has no gradient")
    return differentiable


def _joined_along(one: Any, other: Any, both: Any) -> int | None:
    """Along which dimension two parts' results make up that of both; None for what is no tensor."""
    if not isinstance(both, torch.Tensor):
        if isinstance(both, (int, float, str, bool, type(None))) and one == other == both:
            return None
        raise Inseparable(f"the model returns a {type(both).__name__}, which cannot be put together from parts")
    dims = [dim for dim in range(both.dim()) if one.shape[dim] + other.shape[dim] == both.shape[dim]]
    if len(dims) == 1:
        together = torch.cat((one, other), dims[0])
        if together.shape == both.shape and _alike(together, both):
            return dims[0]
        raise Inseparable("what the model makes of a sample depends on the rest of its batch")
    raise Inseparable(f"the model returns a tensor of shape {tuple(both.shape)}, not one row a sample")


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not other.is_floating_point():
        return bool((one == other).double().mean() > 1 - _TOLERANCE)  # the largest of two near values, say
    return near(one, other, _TOLERANCE)


def _leaves_behind(results: Sequence[Any]) -> set[int]:
    """By id: the tensors in which the graph behind these results ends."""
    made = [leaf.grad_fn for leaf in results if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    return {id(node.variable) for node in nodes_behind(made) if hasattr(node, "variable")}


class _WithoutChance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random numbers are all one and the same, and dropout drops nothing: so two calls can be compared."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        names = [argument.name for argument in schema_of(func).arguments]
        for name in set(names) & set(_DROPOUTS):
            place = names.index(name)
            if place < len(args):
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif name in kwargs:
                kwargs[name] = 0.0
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda each: each.fill_(0.5 if each.is_floating_point() else 0), result)
